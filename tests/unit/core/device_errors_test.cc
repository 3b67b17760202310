// SPDX-License-Identifier: Apache-2.0
// Tests of the error texts of a device's objects. Each names the device, the number or the rule concerned.
#include <gtest/gtest.h>
#include <nupa/connect.h>
#include <nupa/device.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/gid.h"
#include "base/gid_text.h"
#include "cm/connections.h"
#include "core/process.h"
#include "shm/layout.h"

namespace nupa::core {
namespace {

template <class T>
std::string text_of(const Result<T>& result) {
  return result ? "no error" : result.error().what();
}

class CoreDeviceErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_device("nupa0");
    ASSERT_TRUE(opened) << opened.error().what();
    device = std::move(*opened);
    pd = std::move(*device->alloc_pd());
    CqOptions options;
    cq = std::move(*device->create_cq(options));
  }
  std::string qp_text(QpOptions options) { return text_of(device->create_qp(pd.get(), options)); }
  Result<Gid> device_gid() const {
    const auto entry = device->query_gid(1, 0);
    if (!entry) return tl::unexpected(entry.error());
    return entry->gid;
  }
  QpOptions good() const { return {.type = QpType::kRc, .send_cq = cq.get(), .recv_cq = cq.get()}; }

  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> pd;
  std::unique_ptr<CompletionQueue> cq;
};

TEST_F(CoreDeviceErrors, RegMr_RangeThatIsNotMapped_IsNamed) {
  void* const gone = mmap(nullptr, shm::kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ASSERT_EQ(munmap(gone, shm::kPage), 0);
  char expected[120];
  std::snprintf(expected, sizeof expected, "nupa0: 4096 bytes at %p: the range is not mapped with the requested access",
                gone);
  for (const uint32_t rights : {0u, access::kLocalWrite | access::kRemoteWrite}) {
    const auto region = device->reg_mr(*pd, gone, shm::kPage, reinterpret_cast<uint64_t>(gone), rights);
    ASSERT_FALSE(region);
    EXPECT_EQ(region.error().code(), EFAULT);
    EXPECT_STREQ(region.error().what(), expected);
  }
}

TEST_F(CoreDeviceErrors, RegMr_WrongArguments_AreNamed) {
  constexpr int kClosed = 1000000;
  char byte = 0;
  const auto text = [&](size_t length, uint64_t iova, uint32_t rights) {
    return text_of(device->reg_mr(*pd, &byte, length, iova, rights));
  };
  EXPECT_EQ(text(0, 0, 0), "nupa0: a region of 0 bytes is empty or exceeds the address space");
  EXPECT_EQ(text(SIZE_MAX, 0, 0),
            "nupa0: a region of 18446744073709551615 bytes is empty or exceeds the address space");
  EXPECT_EQ(text(2, UINT64_MAX, 0), "iova plus length exceeds the address space");
  EXPECT_EQ(text(1, 0, access::kRemoteWrite), "nupa0: unknown or contradictory access flags");
  EXPECT_EQ(text_of(device->reg_dmabuf_mr(*pd, 0, 0, 0, kClosed, 0)), "the length of a dma-buf region is zero");
  EXPECT_EQ(text_of(device->reg_dmabuf_mr(*pd, 1, 4096, 0, kClosed, 0)),
            "offset and length must be multiples of the page size");
  EXPECT_EQ(text_of(device->reg_dmabuf_mr(*pd, 0, 4096, 0, kClosed, 0)),
            "nupa0: cannot map descriptor 1000000: Bad file descriptor");
  EXPECT_EQ(text_of(device->reg_dmabuf_mr(*pd, 0, 4096, 0, -1, 0)),
            "nupa0: a dma-buf region needs a descriptor that can be mapped");
}

TEST_F(CoreDeviceErrors, CreateCqAndSrq_WrongSizes_AreNamed) {
  CqOptions options;
  options.entries = 0;
  EXPECT_EQ(text_of(device->create_cq(options)),
            "nupa0: a completion queue has 1 to " + std::to_string(device->query().max_cqe) + " entries, not 0");
  SrqOptions srq;
  srq.max_wr = UINT32_MAX;
  EXPECT_EQ(text_of(device->create_srq(*pd, srq)),
            "nupa0: max_wr 4294967295 (from 1 to " + std::to_string(device->query().max_srq_wr) + ")");
  srq.max_wr = 1;
  srq.max_sge = UINT32_MAX;
  EXPECT_EQ(text_of(device->create_srq(*pd, srq)),
            "nupa0: max_sge 4294967295 (at most " + std::to_string(device->query().max_srq_sge) + ")");
  srq.max_sge = 1;
  srq.limit = 2;
  EXPECT_EQ(text_of(device->create_srq(*pd, srq)), "nupa0: srq_limit 2 (at most 1)");
  srq.limit = 0;
  srq.type = SrqType::kXrc;
  EXPECT_EQ(text_of(device->create_srq(*pd, srq)),
            "an XRC shared receive queue needs an XRC domain and a completion queue");
}

TEST_F(CoreDeviceErrors, CreateQp_MissingOrTooLargeOption_IsNamed) {
  QpOptions options = good();
  options.type = static_cast<QpType>(77);
  EXPECT_EQ(qp_text(options), "the queue pair type is not supported");
  options = good();
  options.send_cq = nullptr;
  EXPECT_EQ(qp_text(options), "the queue pair needs a protection domain and send completion queue, or an XRC domain");
  options = good();
  options.recv_cq = nullptr;
  EXPECT_EQ(qp_text(options), "the queue pair needs a receive completion queue");
  options = good();
  options.cap.max_send_wr = UINT32_MAX;
  EXPECT_EQ(qp_text(options),
            "nupa0: max_send_wr 4294967295 (at most " + std::to_string(device->query().max_qp_wr) + ")");
  options = good();
  options.cap.max_recv_sge = 1000;
  EXPECT_EQ(qp_text(options), "nupa0: max_recv_sge 1000 (at most " + std::to_string(device->query().max_sge) + ")");
  EXPECT_EQ(qp_text(good()), "no error");
}

TEST_F(CoreDeviceErrors, OpenQp_OfAnotherProcessOrDomain_NamesTheNumber) {
  auto domain = device->open_xrcd(-1, O_CREAT);
  ASSERT_TRUE(domain) << domain.error().what();
  auto plain = device->create_qp(pd.get(), good());
  ASSERT_TRUE(plain) << plain.error().what();
  const std::string number = std::to_string((*plain)->number());
  EXPECT_EQ(text_of(device->open_qp(**domain, (*plain)->number(), nullptr)),
            "no XRC receive queue pair " + number + " in this XRC domain");
  const uint32_t other_slot = (*plain)->number() ^ 1u << 23;  // the highest bit of a queue pair number is of its slot
  EXPECT_EQ(text_of(device->open_qp(**domain, other_slot, nullptr)),
            "queue pair " + std::to_string(other_slot) + " belongs to another process");
}

TEST_F(CoreDeviceErrors, CreateAhAndQueryGid_InvalidPortOrIndex_IsNamed) {
  AddressVector vector;
  vector.port_num = 2;
  EXPECT_EQ(text_of(device->create_ah(*pd, vector)), "the port number must be 1: the device has one port");
  vector.port_num = 1;
  vector.is_global = true;
  vector.sgid_index = 200;
  EXPECT_EQ(text_of(device->create_ah(*pd, vector)), "nupa0: no source GID at index 200");
  EXPECT_EQ(text_of(device->query_gid(1, 255)), "the GID index is beyond the GID table");
  EXPECT_EQ(text_of(device->query_gid(2, 0)), "the port number must be 1: the device has one port");
}

TEST_F(CoreDeviceErrors, OpenXrcd_WrongFlagsOrDescriptor_AreNamed) {
  EXPECT_EQ(text_of(device->open_xrcd(-1, 0)), "an XRC domain without a file needs O_CREAT");
  EXPECT_EQ(text_of(device->open_xrcd(-1, O_TRUNC)), "XRC domains accept only O_CREAT and O_EXCL");
  EXPECT_EQ(text_of(device->open_xrcd(1 << 20, O_CREAT)),
            "cannot stat the file of the XRC domain: Bad file descriptor");
}

/// What the log says where a queue pair cannot be connected.
std::string connect_text(QueuePair& qp, const ConnectOptions& options, int* error) {
  testing::internal::CaptureStderr();
  *error = connect(qp, options);
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t at = log.find("queue pair");
  return at == std::string::npos ? log : log.substr(at, log.find('\n', at) - at);
}

TEST_F(CoreDeviceErrors, Connect_EmptySourceGid_IsNamed) {
  auto qp = device->create_qp(pd.get(), good());
  ASSERT_TRUE(qp) << qp.error().what();
  int error = 0;
  const auto port = device->query_port(1);
  ASSERT_TRUE(port) << port.error().what();
  const auto last = static_cast<uint8_t>(port->gid_tbl_len - 1);
  EXPECT_EQ(connect_text(**qp, {.dgid = *device_gid(), .dest_qp_num = 5, .sgid_index = last}, &error),
            "queue pair " + std::to_string((*qp)->number()) + " of nupa0 cannot be connected: nupa0: source GID " +
                std::to_string(last) + " is empty");
  EXPECT_EQ(error, EHOSTUNREACH);
}

TEST_F(CoreDeviceErrors, Connect_OverPacketsToAnotherFamily_NamesBothAddresses) {
  cq.reset();
  pd.reset();
  device.reset();
  setenv("NUPA_TRANSPORT", "roce", 1);
  SetUp();
  unsetenv("NUPA_TRANSPORT");
  auto qp = device->create_qp(pd.get(), good());
  ASSERT_TRUE(qp) << qp.error().what();
  const Gid source = *device_gid();
  Gid other = base::ipv4_gid(192, 0, 2, 1);  // RFC 5737: no host's
  if (base::is_ipv4(source)) other.raw[0] = 0xfd;
  int error = 0;
  EXPECT_EQ(connect_text(**qp, {.dgid = other, .dest_qp_num = 5, .sgid_index = 0}, &error),
            "queue pair " + std::to_string((*qp)->number()) + " of nupa0 cannot be connected: source " +
                base::gid_text(source) + " and destination " + base::gid_text(other) +
                " have different address families");
  EXPECT_EQ(error, EHOSTUNREACH);
}

TEST_F(CoreDeviceErrors, FindAddress_AddressOfNoInterface_IsNamed) {
  const auto own = Process::acquire();
  ASSERT_TRUE(own) << own.error().what();
  EXPECT_EQ(text_of(cm::Connections::of(**own)->find_address(base::ipv4_gid(192, 0, 2, 1))),
            "192.0.2.1 is not an address of this host");
}

}  // namespace
}  // namespace nupa::core
