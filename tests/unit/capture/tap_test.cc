// SPDX-License-Identifier: Apache-2.0
/// The captured process's side: attaching, filters, drops, and packets that stand for requests.
#include "capture/tap.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>

#include "base/gid.h"
#include "base/memory_fault.h"
#include "capture/file/frame.h"
#include "capture/link_headers.h"
#include "capture/messages.h"
#include "ring_memory.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::capture {
namespace {

using roce::Operation;
using test::RingMemory;

const Gid kHere = base::ipv4_gid(10, 0, 0, 1);
const Gid kThere = base::ipv4_gid(10, 0, 0, 2);
const Gid kOther = base::ipv4_gid(10, 9, 0, 1);

class CaptureTap : public ::testing::Test {
 protected:
  ~CaptureTap() override { detach(); }

  int attach_error(base::UniqueFd file) {
    const auto attached = attach(std::move(file), "program", {{"nupa0", {kHere}}, {"nupa1", {kOther}}});
    return attached ? 0 : attached.error().code();
  }
  void attach_ring() { ASSERT_EQ(0, attach_error(memory_.descriptor())); }

  /// Records a packet with these headers.
  static void record_headers(roce::Packet headers, Packet packet = {}) {
    std::byte bytes[roce::kMaxHeaderBytes + roce::kIcrcBytes]{};
    const uint32_t length = roce::encode(headers, bytes);
    if (packet.datagram.source == Gid{}) packet.datagram = {.source = kHere, .destination = kThere};
    if (packet.transport.empty()) packet.transport = "test";
    const base::Piece part{bytes, length + roce::kIcrcBytes};
    record(packet, &part, 1);
  }
  static roce::Packet headers_of(roce::Service service, Operation operation, uint32_t dest_qpn = 0x111) {
    roce::Packet headers;
    headers.opcode = roce::opcode_of(service, operation);
    headers.dest_qpn = dest_qpn;
    return headers;
  }
  static roce::Packet send_headers() { return headers_of(roce::Service::kRc, Operation::kSendOnly); }
  /// The packets in the ring, decoded.
  std::vector<roce::Packet> packets() {
    taken_ = memory_.drain();
    std::vector<roce::Packet> all;
    for (RingMemory::Taken& taken : taken_) {
      EXPECT_NE(Crc::kWrong, complete_frame(taken.record, taken.frame));
      const bool ipv4 = taken.frame[12] == std::byte{8};
      const uint32_t before = kEthernetBytes + (ipv4 ? kIpv4Bytes : kIpv6Bytes) + kUdpBytes;
      all.emplace_back();
      EXPECT_TRUE(roce::decode(&taken.frame[before], static_cast<uint32_t>(taken.frame.size() - before), &all.back()));
    }
    return all;
  }
  static std::vector<std::byte> payload_of(const roce::Packet& packet) {
    return {packet.payload, packet.payload + packet.payload_length};
  }

  RingMemory memory_;
  std::vector<RingMemory::Taken> taken_;
};

TEST_F(CaptureTap, Attached_IsOnUntilItIsDetached) {
  EXPECT_FALSE(is_on());
  attach_ring();
  EXPECT_TRUE(is_on());
  const uint32_t first = number();
  EXPECT_STREQ("program", memory_.header().program);
  EXPECT_EQ(2u, memory_.header().device_count);
  EXPECT_STREQ("nupa1", memory_.header().devices[1]);
  detach();
  EXPECT_FALSE(is_on());
  record_headers(send_headers());
  EXPECT_TRUE(memory_.drain().empty());
  attach_ring();
  EXPECT_NE(first, number());
}

TEST_F(CaptureTap, SecondCapture_IsBusy) {
  attach_ring();
  const RingMemory second;
  EXPECT_EQ(EBUSY, attach_error(second.descriptor()));
  record_headers(send_headers());
  EXPECT_EQ(1u, memory_.drain().size());
}

TEST_F(CaptureTap, FileThatIsNoRing_IsRefused) {
  memory_.header().magic = 1;
  EXPECT_EQ(EPROTO, attach_error(memory_.descriptor()));
  memory_.header().magic = kRingMagic;
  memory_.header().version = 77;
  EXPECT_EQ(EPROTO, attach_error(memory_.descriptor()));
  // These have a valid header.
  memory_.header().version = kRingVersion;
  const auto has_header = [&](const base::UniqueFd& file, uint64_t bytes) {
    return ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 && pwrite(file.get(), &memory_.header(), 16, 0) == 16;
  };
  auto odd = base::make_shared_file("odd");
  ASSERT_TRUE(has_header(*odd, Ring::file_bytes(kMinCapacity) + kRecordUnit));
  EXPECT_EQ(EPROTO, attach_error(std::move(*odd)));
  base::UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_TRUE(has_header(unsealed, Ring::file_bytes(kMinCapacity)));
  EXPECT_EQ(EPROTO, attach_error(std::move(unsealed)));
  EXPECT_FALSE(is_on());
}

TEST_F(CaptureTap, FullRing_DropsAndCounts) {
  attach_ring();
  constexpr uint32_t kPackets = 1000;
  for (uint32_t i = 0; i < kPackets; ++i) record_headers(send_headers());
  const size_t kept = memory_.drain().size();
  EXPECT_GT(kept, 0u);
  EXPECT_EQ(kPackets, kept + memory_.dropped());
  record_headers(send_headers());
  EXPECT_EQ(1u, memory_.drain().size());
}

TEST_F(CaptureTap, Child_IsNotCaptured) {
  attach_ring();
  const pid_t child = fork();
  if (child == 0) {
    if (is_on()) _exit(1);
    record_headers(send_headers());
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, WEXITSTATUS(status));
  EXPECT_TRUE(memory_.drain().empty());
  record_headers(send_headers());
  EXPECT_EQ(1u, memory_.drain().size()) << "the parent goes on";
}

TEST_F(CaptureTap, Snaplen_CutsTheFrameAndKeepsItsLength) {
  memory_.header().filters.snaplen = 70;
  attach_ring();
  std::vector<std::byte> data(500, std::byte{7});
  const base::Piece piece{data.data(), data.size()};
  Flow flow{.source = kHere, .destination = kThere, .transport = "test", .qp = 1, .dest_qpn = 2};
  record_request(flow, {.pieces = &piece, .piece_count = 1, .length = data.size()});
  const auto all = memory_.drain();
  ASSERT_EQ(1u, all.size());
  EXPECT_EQ(70u, all[0].frame.size());
  EXPECT_EQ(14u + 20 + 8 + 12 + 500 + 4, all[0].record.length);
  EXPECT_EQ(std::byte{7}, all[0].frame[69]);
}

TEST_F(CaptureTap, Classes_LetTheirPacketsPass) {
  using roce::Service;
  const std::pair<uint32_t, roce::Packet> classes[] = {
      {packet_class::kSend, headers_of(Service::kRc, Operation::kSendMiddle)},
      {packet_class::kWrite, headers_of(Service::kUc, Operation::kWriteOnly)},
      {packet_class::kRead, headers_of(Service::kRc, Operation::kReadRequest)},
      {packet_class::kRead, headers_of(Service::kRc, Operation::kReadResponseMiddle)},
      {packet_class::kAtomic, headers_of(Service::kXrc, Operation::kFetchAdd)},
      {packet_class::kAtomic, headers_of(Service::kRc, Operation::kAtomicAcknowledge)},
      {packet_class::kAck, headers_of(Service::kRc, Operation::kAcknowledge)},
      {packet_class::kCm, headers_of(Service::kUd, Operation::kSendOnly, 1)},
  };
  for (const auto& [wanted, headers] : classes) {
    memory_.header().filters.classes = wanted;
    attach_ring();
    for (const auto& [own, other] : classes) record_headers(other);
    detach();
    size_t expected = 0;
    for (const auto& [own, other] : classes) expected += own == wanted ? 1 : 0;
    EXPECT_EQ(expected, memory_.drain().size()) << "class " << wanted;
  }
}

TEST_F(CaptureTap, QueuePairs_OfEitherSide_Pass) {
  memory_.header().filters.qps[0] = 0x111;
  memory_.header().filters.qps[1] = 0x222;
  memory_.header().filters.qp_count = 2;
  attach_ring();
  record_headers(headers_of(roce::Service::kRc, Operation::kSendOnly, 0x111));
  record_headers(headers_of(roce::Service::kRc, Operation::kSendOnly, 0x333), {.qp = 0x222});
  record_headers(headers_of(roce::Service::kRc, Operation::kSendOnly, 0x333), {.qp = 0x444});
  EXPECT_EQ(2u, memory_.drain().size());
}

TEST_F(CaptureTap, Direction_LetsOnePass) {
  memory_.header().filters.directions = 1u << static_cast<uint32_t>(Direction::kInbound);
  attach_ring();
  record_headers(send_headers(), {.direction = Direction::kOutbound});
  record_headers(send_headers(), {.direction = Direction::kInbound});
  const auto all = memory_.drain();
  ASSERT_EQ(1u, all.size());
  EXPECT_EQ(Direction::kInbound, all[0].record.direction);
}

TEST_F(CaptureTap, Transports_LetTheirPacketsPass) {
  std::memcpy(&memory_.header().filters.transports[0], "pool", 4);
  attach_ring();
  record_headers(send_headers(), {.transport = "shm"});
  record_headers(send_headers(), {.transport = "pool"});
  const auto all = memory_.drain();
  ASSERT_EQ(1u, all.size());
  uint64_t pool = 0;
  std::memcpy(&pool, "pool", 4);
  EXPECT_EQ(pool, memory_.header().transports[all[0].record.transport].load());
}

TEST_F(CaptureTap, Device_IsThatOfTheLocalAddress) {
  attach_ring();
  record_headers(send_headers(), {.datagram = {.source = kOther, .destination = kHere}});
  record_headers(send_headers(),
                 {.datagram = {.source = kOther, .destination = kHere}, .direction = Direction::kInbound});
  record_headers(send_headers(), {.datagram = {.source = kOther, .destination = kHere}, .device = 0});
  const auto all = memory_.drain();
  ASSERT_EQ(3u, all.size());
  EXPECT_EQ(1, all[0].record.device);
  EXPECT_EQ(0, all[1].record.device);
  EXPECT_EQ(0, all[2].record.device);
}

TEST_F(CaptureTap, Devices_LetTheirPacketsPass) {
  std::strcpy(memory_.header().filters.devices[0], "nupa1");
  attach_ring();
  record_headers(send_headers(), {.device = 0});
  record_headers(send_headers(), {.device = 1});
  const auto all = memory_.drain();
  ASSERT_EQ(1u, all.size());
  EXPECT_EQ(1, all[0].record.device);
}

TEST_F(CaptureTap, PayloadThatIsNotThere_ReadsAsZeros) {
  ASSERT_EQ(0, base::watch_memory_faults());
  attach_ring();
  constexpr size_t kPage = 4096;
  void* const gone = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const base::Piece pieces[] = {{static_cast<std::byte*>(gone), 8}, {nullptr, 8}};
  Flow flow{.source = kHere, .destination = kThere, .transport = "test"};
  record_request(flow, {.pieces = pieces, .piece_count = 2, .length = 16});
  munmap(gone, kPage);
  const auto seen = packets();
  ASSERT_EQ(1u, seen.size());
  EXPECT_EQ(std::vector<std::byte>(16), payload_of(seen[0]));
}

// Requests.

class CaptureMessages : public CaptureTap {
 protected:
  void SetUp() override {
    attach_ring();
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  /// The first `length` bytes of the data, in pieces whose ends are no multiples of the MTU.
  Message message(MessageKind kind, uint64_t length) {
    pieces_.clear();
    uint64_t at = 0;
    for (const uint64_t part : {uint64_t{100}, uint64_t{0}, uint64_t{700}, length}) {
      const uint64_t here = std::min(part, length - at);
      pieces_.push_back({data_.data() + at, here});
      at += here;
    }
    return {.kind = kind,
            .rkey = 0x5678,
            .address = 0x123456789a,
            .pieces = pieces_.data(),
            .piece_count = static_cast<uint32_t>(pieces_.size()),
            .length = length};
  }
  std::vector<std::byte> joined(const std::vector<roce::Packet>& packets) {
    std::vector<std::byte> all;
    for (const roce::Packet& packet : packets) {
      const auto payload = payload_of(packet);
      all.insert(all.end(), payload.begin(), payload.end());
    }
    return all;
  }
  std::vector<std::byte> first_bytes(size_t length) const { return {data_.begin(), data_.begin() + length}; }
  static std::vector<int> operations(const std::vector<roce::Packet>& packets) {
    std::vector<int> all;
    for (const roce::Packet& packet : packets) all.push_back(static_cast<int>(roce::operation_of(packet.opcode)));
    return all;
  }
  static std::vector<int> list(std::initializer_list<Operation> operations) {
    std::vector<int> all;
    for (const Operation operation : operations) all.push_back(static_cast<int>(operation));
    return all;
  }

  std::vector<std::byte> data_ = std::vector<std::byte>(4000);
  std::vector<base::Piece> pieces_;
  Flow flow_{.source = kHere,
             .destination = kThere,
             .transport = "test",
             .qp = 0x100,
             .dest_qpn = 0x200,
             .mtu = 1024,
             .psn = 0xfffffe,
             .answer_psn = 0xfffffe};
};

TEST_F(CaptureMessages, Send_IsDividedAtTheMtu) {
  Message sent = message(MessageKind::kSend, 2500);
  sent.solicited = true;
  record_request(flow_, sent);
  record_answer(flow_, sent, Answer::kDone);
  auto seen = packets();
  ASSERT_EQ(4u, seen.size());
  EXPECT_EQ(list({Operation::kSendFirst, Operation::kSendMiddle, Operation::kSendLast, Operation::kAcknowledge}),
            operations(seen));
  EXPECT_EQ(0xfffffeu, seen[0].psn);
  EXPECT_EQ(0xffffffu, seen[1].psn);
  EXPECT_EQ(0u, seen[2].psn);
  EXPECT_FALSE(seen[1].solicited || seen[1].ack_request);
  EXPECT_TRUE(seen[2].solicited && seen[2].ack_request);
  EXPECT_EQ(0x200u, seen[2].dest_qpn);
  EXPECT_EQ(0x100u, seen[3].dest_qpn);
  EXPECT_EQ(0u, seen[3].psn) << "the last packet is acknowledged";
  EXPECT_EQ(1u, seen[3].msn);
  EXPECT_EQ(Direction::kOutbound, taken_[2].record.direction);
  EXPECT_EQ(Direction::kInbound, taken_[3].record.direction);
  seen.pop_back();
  EXPECT_EQ(first_bytes(2500), joined(seen));
  EXPECT_EQ(1u, flow_.psn);
}

TEST_F(CaptureMessages, SendVariants_HaveTheirHeaders) {
  Message sent = message(MessageKind::kSend, 4);
  sent.has_immediate = true;
  sent.imm_or_rkey = 0xaabbccdd;
  record_request(flow_, sent);
  sent.has_immediate = false;
  sent.invalidates = true;
  record_request(flow_, sent);
  record_request(flow_, message(MessageKind::kSend, 0));
  const auto seen = packets();
  ASSERT_EQ(3u, seen.size());
  EXPECT_EQ(list({Operation::kSendOnlyImm, Operation::kSendOnlyInv, Operation::kSendOnly}), operations(seen));
  EXPECT_EQ(0xaabbccddu, seen[0].imm);
  EXPECT_EQ(0xaabbccddu, seen[1].invalidate);
  EXPECT_EQ(0u, seen[2].payload_length);
}

TEST_F(CaptureMessages, Write_HasItsAddressInTheFirstPacket) {
  Message written = message(MessageKind::kWrite, 2000);
  written.has_immediate = true;
  record_request(flow_, written);
  const auto seen = packets();
  ASSERT_EQ(2u, seen.size());
  EXPECT_EQ(list({Operation::kWriteFirst, Operation::kWriteLastImm}), operations(seen));
  EXPECT_EQ(0x123456789au, seen[0].address);
  EXPECT_EQ(0x5678u, seen[0].rkey);
  EXPECT_EQ(2000u, seen[0].length);
  EXPECT_EQ(first_bytes(2000), joined(seen));
}

TEST_F(CaptureMessages, Read_HasItsDataInTheResponse) {
  const Message read = message(MessageKind::kRead, 3000);
  record_request(flow_, read);
  record_answer(flow_, read, Answer::kDone);
  auto seen = packets();
  ASSERT_EQ(4u, seen.size());
  EXPECT_EQ(list({Operation::kReadRequest, Operation::kReadResponseFirst, Operation::kReadResponseMiddle,
                  Operation::kReadResponseLast}),
            operations(seen));
  EXPECT_EQ(3000u, seen[0].length);
  EXPECT_EQ(seen[0].psn, seen[1].psn);
  EXPECT_EQ(1u, flow_.psn) << "a number for each packet of the response";
  EXPECT_EQ(flow_.psn, flow_.answer_psn);
  seen.erase(seen.begin());
  EXPECT_EQ(first_bytes(3000), joined(seen));
}

TEST_F(CaptureMessages, Atomics_HaveTheirOperandsAndTheValueFound) {
  Message atomic = message(MessageKind::kCompareSwap, 8);
  atomic.swap_or_add = 5;
  atomic.compare = 6;
  record_request(flow_, atomic);
  uint64_t found = 0x1122334455667788;
  std::memcpy(data_.data(), &found, sizeof found);
  record_answer(flow_, atomic, Answer::kDone);
  const auto seen = packets();
  ASSERT_EQ(2u, seen.size());
  EXPECT_EQ(list({Operation::kCompareSwap, Operation::kAtomicAcknowledge}), operations(seen));
  EXPECT_EQ(5u, seen[0].swap_or_add);
  EXPECT_EQ(6u, seen[0].compare);
  EXPECT_EQ(found, seen[1].found);
}

TEST_F(CaptureMessages, AtomicWrite_HasItsWord) {
  Message word = message(MessageKind::kAtomicWrite, 0);
  word.piece_count = 0;
  word.compare = 0x0807060504030201;
  record_request(flow_, word);
  record_request(flow_, message(MessageKind::kAtomicWrite, 8));
  const auto seen = packets();
  ASSERT_EQ(2u, seen.size());
  EXPECT_EQ(list({Operation::kAtomicWrite, Operation::kAtomicWrite}), operations(seen));
  EXPECT_EQ(0, std::memcmp(seen[0].payload, &word.compare, 8));
  EXPECT_EQ(first_bytes(8), payload_of(seen[1]));
}

TEST_F(CaptureMessages, Refusals_HaveTheirSyndromes) {
  const std::pair<Answer, uint8_t> all[] = {{Answer::kNotReady, 0x20},
                                            {Answer::kInvalidRequest, 0x61},
                                            {Answer::kRemoteAccess, 0x62},
                                            {Answer::kRemoteOperation, 0x63}};
  const Message sent = message(MessageKind::kSend, 2500);
  for (const auto& [answer, syndrome] : all) {
    const uint32_t psn = flow_.answer_psn;
    record_answer(flow_, sent, answer);
    const auto seen = packets();
    ASSERT_EQ(1u, seen.size());
    EXPECT_EQ(syndrome, seen[0].syndrome);
    EXPECT_EQ(psn, seen[0].psn) << "that of the first packet";
    EXPECT_EQ(0u, seen[0].msn);
  }
  record_answer(flow_, sent, Answer::kNone);
  EXPECT_TRUE(packets().empty());
}

TEST_F(CaptureMessages, Services_HaveTheirOpcodes) {
  const std::pair<QpType, roce::Service> services[] = {{QpType::kRc, roce::Service::kRc},
                                                       {QpType::kUc, roce::Service::kUc},
                                                       {QpType::kUd, roce::Service::kUd},
                                                       {QpType::kXrcSend, roce::Service::kXrc}};
  for (const auto& [type, service] : services) {
    flow_.type = type;
    Message sent = message(MessageKind::kSend, 4);
    sent.qkey = 0x77;
    sent.srqn = 0x88;
    record_request(flow_, sent);
    const auto seen = packets();
    ASSERT_EQ(1u, seen.size());
    EXPECT_EQ(service, roce::service_of(seen[0].opcode));
    EXPECT_EQ(type == QpType::kUd ? 0x77u : 0u, seen[0].qkey);
    EXPECT_EQ(type == QpType::kUd ? 0x100u : 0u, seen[0].source_qpn);
    EXPECT_EQ(type == QpType::kXrcSend ? 0x88u : 0u, seen[0].srqn);
    EXPECT_EQ(type == QpType::kRc || type == QpType::kXrcSend, seen[0].ack_request);
  }
}

TEST_F(CaptureMessages, Mad_IsADatagramToQueuePairOne) {
  std::vector<std::byte> mad(256, std::byte{3});
  record_mad(flow_, mad.data(), 256);
  const auto seen = packets();
  ASSERT_EQ(1u, seen.size());
  EXPECT_EQ(1u, seen[0].dest_qpn);
  EXPECT_EQ(1u, seen[0].source_qpn);
  EXPECT_EQ(0x80010000u, seen[0].qkey);
  EXPECT_EQ(mad, payload_of(seen[0]));
}

}  // namespace
}  // namespace nupa::capture
