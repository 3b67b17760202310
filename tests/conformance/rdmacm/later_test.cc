// SPDX-License-Identifier: Apache-2.0
/// The functions that rdma-core has since releases later than Debian 12's, as a program of such a release calls them.
#include <netdb.h>

#include "../../support/later_symbol.h"
#include "fixture.h"

namespace nupa::test {
namespace {

constexpr int kAddrinfoResolved = 16, kAddrinfoError = 17, kUser = 18, kInternal = 19;
constexpr int kSa = 0x10, kDns = 0x20;

/// A function of the version RDMACM_1.4. Null: the library has none, and the test fails.
template <class Function>
Function* find(const char* name) {
  return later_symbol<Function>(&rdma_create_id, name, "RDMACM_1.4");
}

class RdmaCmLater : public RdmaCm {
 protected:
  using WriteEvent = int(rdma_cm_id*, int, int, uint64_t);
  using Resolve = int(rdma_cm_id*, const char*, const char*, const rdma_addrinfo*);
  using Query = int(rdma_cm_id*, rdma_addrinfo**);
  WriteEvent* const write_event_ = find<WriteEvent>("rdma_write_cm_event");
  Resolve* const resolve_ = find<Resolve>("rdma_resolve_addrinfo");
  Query* const query_ = find<Query>("rdma_query_addrinfo");
  OwnId id_ = make_id(active_.get());
};

TEST_F(RdmaCmLater, WriteCmEvent_ArrivesWithItsStatusAndArgument) {
  constexpr uint64_t kArgument = 0x123456789abcdef0;
  ASSERT_EQ(write_event_(id_.get(), kUser, -7, kArgument), 0) << errno;
  ASSERT_EQ(write_event_(id_.get(), kUser, 3, 1), 0) << errno;
  for (const auto& [status, argument] : {std::pair{-7, kArgument}, {3, uint64_t{1}}}) {
    rdma_cm_event* const event = active_.take();
    ASSERT_NE(event, nullptr);
    EXPECT_EQ(seen_of(event).type, kUser);
    EXPECT_EQ(event->id, id_.get());
    EXPECT_EQ(event->status, status);
    uint64_t found = 0;
    std::memcpy(&found, &event->param, sizeof found);
    EXPECT_EQ(found, argument);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
  }
}

TEST_F(RdmaCmLater, WriteCmEvent_OfAnotherKind_IsRefused) {
  for (const int kind : {0, RDMA_CM_EVENT_ESTABLISHED + 0, kAddrinfoResolved, kAddrinfoError, kInternal, -1})
    EXPECT_EQ(error_of(write_event_(id_.get(), kind, 0, 0)), EINVAL) << kind;
  EXPECT_EQ(error_of(write_event_(nullptr, kUser, 0, 0)), EINVAL);
  EXPECT_TRUE(active_.silent());
}

TEST_F(RdmaCmLater, ResolveAddrinfo_EndsWithAnEvent_AndTheResultIsTakenOnce) {
  rdma_addrinfo hints{};
  hints.ai_flags = kDns | RAI_NUMERICHOST;
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* info = nullptr;
  EXPECT_EQ(error_of(query_(id_.get(), &info)), ENOENT);
  ASSERT_EQ(resolve_(id_.get(), "127.0.0.2", "7471", &hints), 0) << errno;
  EXPECT_EQ(error_of(resolve_(id_.get(), "127.0.0.3", "1", &hints)), EBUSY);
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, kAddrinfoResolved);
  EXPECT_EQ(seen.id, id_.get());
  EXPECT_EQ(seen.status, 0);
  ASSERT_EQ(query_(id_.get(), &info), 0) << errno;
  ASSERT_NE(info, nullptr);
  ASSERT_EQ(info->ai_dst_len, sizeof(sockaddr_in));
  const auto* const address = reinterpret_cast<const sockaddr_in*>(info->ai_dst_addr);
  EXPECT_EQ(ntohl(address->sin_addr.s_addr), 0x7f000002u);
  EXPECT_EQ(ntohs(address->sin_port), 7471);
  EXPECT_EQ(info->ai_port_space, RDMA_PS_TCP);
  rdma_freeaddrinfo(info);
  EXPECT_EQ(error_of(query_(id_.get(), &info)), ENOENT);
  // Again; nobody takes that result, which is freed with the id.
  ASSERT_EQ(resolve_(id_.get(), "127.0.0.3", nullptr, nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, kAddrinfoResolved);
}

TEST_F(RdmaCmLater, ResolveAddrinfo_OfASynchronousId_ReturnsWithTheResult) {
  OwnId id = make_id(nullptr);
  ASSERT_EQ(resolve_(id.get(), "127.0.0.2", nullptr, nullptr), 0) << errno;
  rdma_addrinfo* info = nullptr;
  ASSERT_EQ(query_(id.get(), &info), 0) << errno;
  rdma_freeaddrinfo(info);
}

TEST_F(RdmaCmLater, ResolveAddrinfo_Failure_LeavesTheIdFree) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_NUMERICHOST;
  EXPECT_EQ(error_of(resolve_(id_.get(), "no number", nullptr, &hints)), EAI_NONAME);
  EXPECT_EQ(error_of(resolve_(id_.get(), nullptr, nullptr, nullptr)), EINVAL);
  hints.ai_flags = kSa;
  EXPECT_EQ(error_of(resolve_(id_.get(), nullptr, "1", &hints)), ENOTSUP);
  EXPECT_EQ(error_of(resolve_(nullptr, "127.0.0.1", nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(query_(id_.get(), nullptr)), EINVAL);
  rdma_addrinfo* info = nullptr;
  EXPECT_EQ(error_of(query_(id_.get(), &info)), ENOENT);
  EXPECT_EQ(error_of(query_(nullptr, &info)), EINVAL);
  EXPECT_TRUE(active_.silent());
  ASSERT_EQ(resolve_(id_.get(), "127.0.0.2", nullptr, nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, kAddrinfoResolved);
}

}  // namespace
}  // namespace nupa::test
