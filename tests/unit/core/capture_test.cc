// SPDX-License-Identifier: Apache-2.0
/// A process that is captured: how it is attached, and which packets its requests are.
#include <poll.h>

#include <thread>

#include "../capture/ring_memory.h"
#include "capture/file/frame.h"
#include "capture/link_headers.h"
#include "capture/tap.h"
#include "host/runtime_dir.h"
#include "host/wire.h"
#include "shm_fixture.h"
#include "transport/roce/wire/wire.h"

namespace nupa::core {
namespace {

using capture::test::RingMemory;
using roce::Operation;

/// Asks the process in `slot` to record into the ring. Returns the connection; empty: it refused.
base::UniqueFd ask(const host::RuntimeDir& dir, uint32_t slot, const RingMemory& memory) {
  auto socket = dir.connect(slot);
  if (!socket) return {};
  host::Message question{};
  question.magic = host::kWireMagic;
  question.version = host::kWireVersion;
  question.kind = static_cast<uint32_t>(host::MessageKind::kCapture);
  const int fd = memory.fd();
  if (!host::send_message(socket->get(), question, &fd, 1)) return {};
  constexpr int kSoonMs = 20'000;
  if (!host::wait_readable(socket->get(), kSoonMs)) return {};
  const auto answer = host::receive_message(socket->get());
  if (!answer || answer->message.kind != static_cast<uint32_t>(host::MessageKind::kCaptured)) return {};
  return std::move(*socket);
}

struct Seen {
  roce::Packet packet;
  std::vector<std::byte> payload;
  capture::Record record;
  capture::Crc crc;
  Operation operation() const { return roce::operation_of(packet.opcode); }
};

class CaptureOfProcess : public ShmTest {
 protected:
  void TearDown() override {
    socket_.reset();
    EXPECT_TRUE(soon([] { return !capture::is_on(); }));
    ShmTest::TearDown();
  }
  void attach() {
    socket_ = ask(process().node().runtime_dir(), process().slot(), memory_);
    ASSERT_TRUE(socket_);
  }
  std::vector<Seen> seen() {
    std::vector<Seen> all;
    for (RingMemory::Taken& taken : memory_.drain()) {
      Seen& one = all.emplace_back();
      one.record = taken.record;
      one.crc = capture::complete_frame(taken.record, taken.frame);
      const bool ipv4 = taken.frame[12] == std::byte{8};
      const uint32_t at = capture::kEthernetBytes + (ipv4 ? capture::kIpv4Bytes : capture::kIpv6Bytes) + 8;
      EXPECT_TRUE(roce::decode(&taken.frame[at], static_cast<uint32_t>(taken.frame.size() - at), &one.packet));
      one.payload.assign(one.packet.payload, one.packet.payload + one.packet.payload_length);
    }
    return all;
  }
  std::vector<std::byte> bytes(size_t offset, size_t length) {
    const auto* const at = reinterpret_cast<const std::byte*>(memory + offset);
    return {at, at + length};
  }
  int post(Qp& qp, Opcode opcode, uint32_t length) {
    const Sge sge = span(0, length);
    SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.flags = send_flag::kSignaled;
    wr.rkey = region->rkey();
    wr.remote_addr = reinterpret_cast<uint64_t>(memory + 4096);
    wr.compare_add = 3;
    wr.swap = 4;
    return qp.post_send(wr);
  }

  RingMemory memory_;
  base::UniqueFd socket_;
};

TEST_F(CaptureOfProcess, Attached_UntilTheConnectionEnds) {
  make_pair();
  EXPECT_EQ(0, write(*a, 1));
  ASSERT_NO_FATAL_FAILURE(attach());
  EXPECT_TRUE(capture::is_on());
  EXPECT_EQ(0, write(*a, 2));
  EXPECT_EQ(2u, seen().size());
  socket_.reset();
  ASSERT_TRUE(soon([] { return !capture::is_on(); }));
  EXPECT_EQ(0, write(*a, 3));
  EXPECT_TRUE(seen().empty());
  ASSERT_NO_FATAL_FAILURE(attach());
  EXPECT_EQ(0, write(*a, 4));
  EXPECT_EQ(2u, seen().size());
}

TEST_F(CaptureOfProcess, SecondCapture_IsRefused) {
  ASSERT_NO_FATAL_FAILURE(attach());
  const RingMemory second;
  EXPECT_FALSE(ask(process().node().runtime_dir(), process().slot(), second));
  EXPECT_TRUE(capture::is_on());
}

TEST_F(CaptureOfProcess, ConnectionThatSaysMore_Ends) {
  ASSERT_NO_FATAL_FAILURE(attach());
  host::Message more{};
  more.magic = host::kWireMagic;
  more.version = host::kWireVersion;
  more.kind = static_cast<uint32_t>(host::MessageKind::kObserver);
  ASSERT_TRUE(host::send_message(socket_.get(), more, nullptr, 0));
  EXPECT_TRUE(soon([] { return !capture::is_on(); }));
}

TEST_F(CaptureOfProcess, LastCloseOfADevice_EndsIt) {
  ASSERT_NO_FATAL_FAILURE(attach());
  close();
  EXPECT_FALSE(capture::is_on());
  ASSERT_TRUE(open());
}

TEST_F(CaptureOfProcess, Write_IsARequestAndItsAcknowledgement) {
  make_pair();
  ASSERT_NO_FATAL_FAILURE(attach());
  std::strcpy(memory, "sentence");
  std::strcpy(memory + 4090, "another sentence");
  const auto data = bytes(0, 5000);  // the end of it is written over
  const Sge sge = span(0, 5000);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kRdmaWrite};
  wr.flags = send_flag::kSignaled;
  wr.rkey = region->rkey();
  wr.remote_addr = reinterpret_cast<uint64_t>(memory + kBytes - 5000);
  ASSERT_EQ(0, a->post_send(wr));
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  const auto all = seen();
  ASSERT_EQ(3u, all.size());
  EXPECT_EQ(Operation::kWriteFirst, all[0].operation());
  EXPECT_EQ(Operation::kWriteLast, all[1].operation());
  EXPECT_EQ(Operation::kAcknowledge, all[2].operation());
  EXPECT_EQ(std::vector(data.begin(), data.begin() + 4096), all[0].payload);
  EXPECT_EQ(std::vector(data.begin() + 4096, data.end()), all[1].payload);
  EXPECT_EQ(b->number(), all[0].packet.dest_qpn);
  EXPECT_EQ(a->number(), all[2].packet.dest_qpn);
  EXPECT_EQ(a->number(), all[0].record.qp);
  EXPECT_EQ(capture::Crc::kRight, all[0].crc);
  EXPECT_EQ(region->rkey(), all[0].packet.rkey);
}

TEST_F(CaptureOfProcess, Read_HasTheDataThatCame) {
  make_pair();
  ASSERT_NO_FATAL_FAILURE(attach());
  std::memset(memory + 4096, 'r', 100);
  ASSERT_EQ(0, post(*a, Opcode::kRdmaRead, 100));
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  const auto all = seen();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(Operation::kReadRequest, all[0].operation());
  EXPECT_EQ(Operation::kReadResponseOnly, all[1].operation());
  EXPECT_EQ(std::vector<std::byte>(100, std::byte{'r'}), all[1].payload);
}

TEST_F(CaptureOfProcess, Atomic_HasTheValueFound) {
  make_pair();
  ASSERT_NO_FATAL_FAILURE(attach());
  const uint64_t before = 77;
  std::memcpy(memory + 4096, &before, sizeof before);
  ASSERT_EQ(0, post(*a, Opcode::kFetchAdd, 8));
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  const auto all = seen();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(3u, all[0].packet.swap_or_add);
  EXPECT_EQ(before, all[1].packet.found);
}

TEST_F(CaptureOfProcess, Flush_NamesItsRangeAndIsAnsweredLikeARead) {
  make_pair(QpType::kRc, {.rights = access::kRemoteWrite | access::kFlushGlobal});
  auto flushed = handle->reg_mr(*pd, memory, 8192, reinterpret_cast<uint64_t>(memory),
                                access::kLocalWrite | access::kRemoteWrite | access::kFlushGlobal);
  ASSERT_TRUE(flushed);
  ASSERT_NO_FATAL_FAILURE(attach());
  SendWr wr{.wr_id = 1, .opcode = Opcode::kFlush};
  wr.flags = send_flag::kSignaled;
  wr.imm_or_rkey = flush_flag::kGlobal;
  wr.rkey = (*flushed)->rkey();
  wr.remote_addr = reinterpret_cast<uint64_t>(memory + 100);
  wr.compare_add = 200;
  ASSERT_EQ(0, a->post_send(wr));
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  const auto all = seen();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(Operation::kFlush, all[0].operation());
  EXPECT_EQ(flush_flag::kGlobal, all[0].packet.flush);
  EXPECT_EQ(200u, all[0].packet.length);
  EXPECT_EQ(wr.remote_addr, all[0].packet.address);
  EXPECT_EQ(Operation::kReadResponseOnly, all[1].operation());
  EXPECT_EQ(all[0].packet.psn, all[1].packet.psn);
  EXPECT_TRUE(all[1].payload.empty());
}

TEST_F(CaptureOfProcess, RequestThatWaits_IsAnsweredWhenItCompletes) {
  make_pair();
  ASSERT_NO_FATAL_FAILURE(attach());
  ASSERT_EQ(0, send(*a, 1));  // no receive is posted
  const auto posted = seen();
  ASSERT_EQ(1u, posted.size());
  EXPECT_EQ(Operation::kSendOnly, posted[0].operation());
  ASSERT_EQ(0, receive(*b, 2));
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  const auto ended = seen();
  ASSERT_EQ(1u, ended.size());
  EXPECT_EQ(Operation::kAcknowledge, ended[0].operation());
  EXPECT_EQ(posted[0].packet.psn, ended[0].packet.psn);
}

TEST_F(CaptureOfProcess, RequestFromBeforeTheCapture_HasNoAnswer) {
  make_pair();
  ASSERT_EQ(0, send(*a, 1));
  ASSERT_NO_FATAL_FAILURE(attach());
  ASSERT_EQ(0, send(*a, 2));
  ASSERT_EQ(0, receive(*b, 3));
  ASSERT_EQ(0, receive(*b, 4));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(WcStatus::kSuccess, next().status);
  const auto all = seen();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(Operation::kSendOnly, all[0].operation());
  EXPECT_EQ(Operation::kAcknowledge, all[1].operation());
  EXPECT_EQ(all[0].packet.psn, all[1].packet.psn);
}

TEST_F(CaptureOfProcess, RefusedRequest_HasTheNak) {
  make_pair();
  ASSERT_NO_FATAL_FAILURE(attach());
  ASSERT_EQ(0, write(*a, 1, reinterpret_cast<uint64_t>(memory), region->rkey() + 1));
  EXPECT_EQ(WcStatus::kRemAccessErr, next().status);
  const auto all = seen();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(0x62, all[1].packet.syndrome);
}

TEST_F(CaptureOfProcess, LocalFault_IsNoPacket) {
  make_pair();
  ASSERT_NO_FATAL_FAILURE(attach());
  const Sge sge{reinterpret_cast<uint64_t>(memory), 8, region->lkey() + 1};
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
  ASSERT_EQ(0, a->post_send(wr));
  EXPECT_EQ(WcStatus::kLocProtErr, next().status);
  EXPECT_TRUE(seen().empty());
}

TEST_F(CaptureOfProcess, UnreliableConnection_HasNoAcknowledgement) {
  make_pair(QpType::kUc);
  ASSERT_NO_FATAL_FAILURE(attach());
  EXPECT_EQ(0, write(*a, 1));
  const auto all = seen();
  ASSERT_EQ(1u, all.size());
  EXPECT_EQ(roce::Service::kUc, roce::service_of(all[0].packet.opcode));
}

TEST_F(CaptureOfProcess, Datagrams_HaveTheirHeadersAndNumbers) {
  make_pair(QpType::kUd);
  ASSERT_NO_FATAL_FAILURE(attach());
  const auto ah = make_ah(own_gid());
  ASSERT_EQ(0, send_to(*a, ah.get(), b->number(), 1));
  ASSERT_EQ(0, send_to(*a, ah.get(), b->number(), 2));
  const auto all = seen();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(a->number(), all[0].packet.source_qpn);
  EXPECT_EQ(b->number(), all[0].packet.dest_qpn);
  EXPECT_EQ(kQkey, all[0].packet.qkey);
  EXPECT_EQ(bytes(0, 8), all[0].payload);
  EXPECT_EQ(all[0].packet.psn + 1, all[1].packet.psn);
}

TEST_F(CaptureOfProcess, DatagramsToAGroup_HaveItsNumber) {
  make_pair(QpType::kUd);
  Gid group{};
  group.raw = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  ASSERT_EQ(0, b->attach_multicast(group, 0));
  ASSERT_NO_FATAL_FAILURE(attach());
  const auto ah = make_ah(group);
  ASSERT_EQ(0, send_to(*a, ah.get(), b->number()));
  const auto all = seen();
  ASSERT_EQ(1u, all.size());
  EXPECT_EQ(0xffffffu, all[0].packet.dest_qpn);
  EXPECT_EQ(0, b->detach_multicast(group, 0));
}

TEST_F(CaptureOfProcess, ProcessThatStarts_WaitsForTheCapture) {
  close();
  auto dir = host::RuntimeDir::open();
  ASSERT_TRUE(dir);
  ASSERT_TRUE((*dir)->hold(host::RuntimeDir::kCaptureOfAllKey, false));
  EXPECT_TRUE((*dir)->list().empty());
  std::thread command([&] {
    EXPECT_TRUE(soon([&] {
      for (const uint32_t slot : (*dir)->list())
        if ((socket_ = ask(**dir, slot, memory_))) return true;
      return false;
    }));
  });
  const bool opened = open();
  const bool was_on = capture::is_on();
  command.join();
  ASSERT_TRUE(opened);
  EXPECT_TRUE(was_on);
}

class CaptureOfPackets : public CaptureOfProcess {
 protected:
  void SetUp() override { ASSERT_TRUE(open("roce")); }
};

TEST_F(CaptureOfPackets, PacketsThatLeaveAndArrive_AreRecordedOnce) {
  make_pair();
  ASSERT_NO_FATAL_FAILURE(attach());
  std::memset(memory, 'p', 3000);
  ASSERT_EQ(0, post(*a, Opcode::kRdmaWrite, 3000));
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  std::vector<std::byte> sent, arrived;
  bool has_answer = false;
  for (const Seen& one : seen()) {
    EXPECT_NE(capture::Crc::kWrong, one.crc);
    EXPECT_EQ(0, one.record.flags & capture::frame_flag::kSynthetic);
    if ((roce::traits_of(one.packet.opcode) & roce::trait::kWrite) == 0) {
      has_answer = has_answer || one.record.direction == capture::Direction::kInbound;
      continue;
    }
    auto& to = one.record.direction == capture::Direction::kOutbound ? sent : arrived;
    to.insert(to.end(), one.payload.begin(), one.payload.end());
    EXPECT_EQ(one.record.direction == capture::Direction::kOutbound ? a->number() : b->number(), one.record.qp);
  }
  EXPECT_EQ(bytes(0, 3000), sent);
  EXPECT_EQ(bytes(0, 3000), arrived);
  EXPECT_TRUE(has_answer);
}

TEST_F(CaptureOfPackets, Datagrams_AreRecordedByThePortAlone) {
  make_pair(QpType::kUd);
  ASSERT_EQ(0, receive(*b, 7));
  ASSERT_NO_FATAL_FAILURE(attach());
  const auto ah = make_ah(own_gid());
  ASSERT_EQ(0, send_to(*a, ah.get(), b->number(), 1));
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  EXPECT_EQ(WcStatus::kSuccess, next().status);
  const auto all = seen();
  ASSERT_EQ(2u, all.size());
  EXPECT_EQ(capture::Direction::kOutbound, all[0].record.direction);
  EXPECT_EQ(a->number(), all[0].record.qp);
  EXPECT_EQ(capture::Direction::kInbound, all[1].record.direction);
  EXPECT_EQ(b->number(), all[1].record.qp);
}

}  // namespace
}  // namespace nupa::core
