// SPDX-License-Identifier: Apache-2.0
/// Tests of the requests on their way through a gateway: their bytes, their order, and the room that they use.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "gateway/request_relay.h"

namespace nupa::gateway {
namespace {

using core::Inbound;
using core::Piece;
using core::SendPart;
using core::Verdict;
using core::WritePart;
using Part = RequestRelay::Part;
using State = core::Relay::Fetched::State;

constexpr uint64_t kWindow = 2 * RequestRelay::kPartBytes;
constexpr uint32_t kMtu = 1024;
constexpr uint32_t kKey = 0x77;
constexpr uint64_t kAddress = 0x1000;

std::byte pattern(uint64_t i, uint32_t seed) { return static_cast<std::byte>(i * 13 + i / 255 + seed); }
std::vector<std::byte> bytes_of(size_t length, uint32_t seed) {
  std::vector<std::byte> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = pattern(i, seed);
  return bytes;
}

class GatewayRelay : public ::testing::Test {
 protected:
  /// Hands a message over in packets, from `*offset` on. Returns the verdict of the last packet that was handed over.
  Verdict write_from(const std::vector<std::byte>& bytes, size_t* offset, bool has_immediate = false) {
    Verdict verdict = Verdict::accepted();
    Inbound inbound;
    inbound.imm_data = 99;
    do {
      const size_t length = std::min<size_t>(kMtu, bytes.size() - *offset);
      Piece piece{const_cast<std::byte*>(bytes.data()) + *offset, length};
      const bool last = *offset + length == bytes.size();
      verdict = relay.write(
          {*offset == 0, last, has_immediate && last, false, &piece, 1, length, bytes.size(), kAddress, kKey, 0},
          inbound);
      if (verdict.is_not_served()) return verdict;
      *offset += length;
    } while (*offset < bytes.size());
    return verdict;
  }
  Verdict write(const std::vector<std::byte>& bytes, bool has_immediate = false) {
    size_t offset = 0;
    return write_from(bytes, &offset, has_immediate);
  }
  Verdict send(const std::vector<std::byte>& bytes, const Inbound& inbound = {}, uint32_t invalidated = 0) {
    size_t offset = 0;
    return send_from(bytes, &offset, inbound, invalidated);
  }
  Verdict send_from(const std::vector<std::byte>& bytes, size_t* offset, const Inbound& inbound = {},
                    uint32_t invalidated = 0) {
    Verdict verdict = Verdict::accepted();
    do {
      const size_t length = std::min<size_t>(kMtu, bytes.size() - *offset);
      Piece piece{const_cast<std::byte*>(bytes.data()) + *offset, length};
      verdict = relay.send(
          {*offset == 0, *offset + length == bytes.size(), &piece, 1, length, 0, invalidated != 0, invalidated},
          inbound);
      if (!verdict.is_accepted()) return verdict;
      *offset += length;
    } while (*offset < bytes.size());
    return verdict;
  }
  /// The bytes that a part would send.
  std::vector<std::byte> content(const Part& part) {
    std::array<Sge, 2> pieces;
    std::vector<std::byte> bytes;
    const int count = relay.pieces_of(part, pieces, 5);
    for (int i = 0; i < count; ++i) {
      const Sge& piece = pieces[static_cast<size_t>(i)];
      EXPECT_EQ(piece.lkey, 5u);
      const auto* const at = reinterpret_cast<const std::byte*>(piece.addr);
      EXPECT_GE(at, memory.data());
      EXPECT_LE(at + piece.length, memory.data() + memory.size());
      bytes.insert(bytes.end(), at, at + piece.length);
    }
    return bytes;
  }
  /// Writes an answer, as the other side does.
  void answer(const Part& part, const std::vector<std::byte>& bytes) {
    std::array<Sge, 2> pieces;
    const int count = relay.pieces_of(part, pieces, 5);
    size_t done = 0;
    for (int i = 0; i < count; ++i) {
      const Sge& piece = pieces[static_cast<size_t>(i)];
      std::memcpy(reinterpret_cast<void*>(piece.addr), bytes.data() + done, piece.length);
      done += piece.length;
    }
  }
  int works = 0;
  std::vector<std::byte> memory = std::vector<std::byte>(2 * kWindow);
  RequestRelay relay{memory.data(), kWindow, [this] { ++works; }};
};

TEST_F(GatewayRelay, Send_ArrivesWholeWithItsFlags) {
  Inbound inbound;
  inbound.wc_flags = wc_flag::kWithImm;
  inbound.imm_data = 42;
  inbound.solicited = true;
  EXPECT_TRUE(send(bytes_of(3000, 1), inbound).is_taken());
  EXPECT_EQ(works, 1);
  EXPECT_TRUE(send(bytes_of(10, 2), {}, 0x55).is_taken());
  EXPECT_TRUE(send({}).is_taken());
  const auto first = relay.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->opcode, Opcode::kSendWithImm);
  EXPECT_EQ(first->imm_or_rkey, 42u);
  EXPECT_TRUE(first->solicited);
  EXPECT_TRUE(first->ends);
  EXPECT_EQ(content(*first), bytes_of(3000, 1));
  const auto second = relay.next();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->opcode, Opcode::kSendWithInv);
  EXPECT_EQ(second->imm_or_rkey, 0x55u);
  EXPECT_EQ(content(*second), bytes_of(10, 2));
  const auto third = relay.next();
  ASSERT_TRUE(third);
  EXPECT_EQ(third->opcode, Opcode::kSend);
  EXPECT_EQ(third->length, 0u);
  EXPECT_FALSE(relay.next());
  relay.end(*first, WcStatus::kSuccess);
  EXPECT_EQ(relay.endings().count, 1u);
}

TEST_F(GatewayRelay, LongWrite_LeavesInPartsAndOnlyTheLastHasTheImmediate) {
  const auto bytes = bytes_of(kWindow + 5000, 3);  // longer than the ring
  size_t offset = 0;
  EXPECT_TRUE(write_from(bytes, &offset, true).is_not_served());
  std::vector<std::byte> arrived;
  Verdict verdict = Verdict::not_served();
  int parts = 0;
  for (int turn = 0; turn < 10 && !verdict.is_taken(); ++turn) {
    while (const auto part = relay.next()) {
      EXPECT_EQ(part->address, kAddress + arrived.size());
      EXPECT_EQ(part->rkey, kKey);
      EXPECT_EQ(part->opcode, Opcode::kRdmaWrite);
      const auto more = content(*part);
      arrived.insert(arrived.end(), more.begin(), more.end());
      relay.end(*part, WcStatus::kSuccess);
      ++parts;
    }
    EXPECT_EQ(relay.endings().count, 0u) << "a part is not the end";
    verdict = write_from(bytes, &offset, true);
  }
  EXPECT_TRUE(verdict.is_taken());
  const auto last = relay.next();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->opcode, Opcode::kRdmaWriteWithImm);
  EXPECT_EQ(last->imm_or_rkey, 99u);
  const auto more = content(*last);
  arrived.insert(arrived.end(), more.begin(), more.end());
  EXPECT_EQ(arrived, bytes);
  EXPECT_GE(parts, 2);
  relay.end(*last, WcStatus::kSuccess);
  EXPECT_EQ(relay.endings().count, 1u);
}

TEST_F(GatewayRelay, EmptyWrite_IsPassedOn) {
  EXPECT_TRUE(write({}).is_taken());
  const auto part = relay.next();
  ASSERT_TRUE(part);
  EXPECT_EQ(part->opcode, Opcode::kRdmaWrite);
  EXPECT_EQ(part->address, kAddress);
  std::array<Sge, 2> pieces;
  EXPECT_EQ(relay.pieces_of(*part, pieces, 5), 0);
}

TEST_F(GatewayRelay, SendLongerThanTheRing_IsRefusedOnceNothingElseIsUnderWay) {
  EXPECT_TRUE(send({}).is_taken());
  const auto bytes = bytes_of(kWindow + 1, 2);
  size_t offset = 0;
  EXPECT_TRUE(send_from(bytes, &offset).is_not_served());
  const auto part = relay.next();
  ASSERT_TRUE(part);
  relay.end(*part, WcStatus::kSuccess);
  EXPECT_TRUE(send_from(bytes, &offset).is_refused());
}

TEST_F(GatewayRelay, SendAsLongAsTheRing_IsTaken) {
  EXPECT_TRUE(send(bytes_of(kWindow, 2)).is_taken());
  const auto part = relay.next();
  ASSERT_TRUE(part);
  EXPECT_EQ(content(*part), bytes_of(kWindow, 2));
}

TEST_F(GatewayRelay, TooManyRequestsUnderWay_TheNextWaits) {
  for (uint32_t i = 0; i < core::kMostRelayed; ++i) EXPECT_TRUE(write(bytes_of(8, i)).is_taken());
  EXPECT_TRUE(write(bytes_of(8, 1)).is_not_served());
  EXPECT_TRUE(relay.write_atomically(kKey, kAddress, 1).is_not_served());
  const auto part = relay.next();
  ASSERT_TRUE(part);
  relay.end(*part, WcStatus::kSuccess);
  EXPECT_TRUE(write(bytes_of(8, 1)).is_taken());
}

TEST_F(GatewayRelay, AtomicWrite_HasItsValueInTheRequest) {
  EXPECT_TRUE(relay.write_atomically(kKey, kAddress, 1234).is_taken());
  const auto part = relay.next();
  ASSERT_TRUE(part);
  EXPECT_EQ(part->opcode, Opcode::kAtomicWrite);
  EXPECT_EQ(part->compare_add, 1234u);
  EXPECT_TRUE(part->ends);
  EXPECT_EQ(part->length, 0u);
}

TEST_F(GatewayRelay, Flush_IsAskedLikeAReadOfNoBytes) {
  uint32_t ticket;
  EXPECT_TRUE(relay.flush({flush_flag::kGlobal, 4096, kAddress, kKey, 0}, &ticket).is_taken());
  const auto part = relay.next();
  ASSERT_TRUE(part);
  EXPECT_EQ(part->opcode, Opcode::kFlush);
  EXPECT_EQ(part->imm_or_rkey, flush_flag::kGlobal);
  EXPECT_EQ(part->compare_add, 4096u);
  EXPECT_EQ(part->address, kAddress);
  EXPECT_EQ(part->rkey, kKey);
  EXPECT_EQ(part->length, 0u);
  EXPECT_FALSE(part->ends);
  EXPECT_EQ(relay.fetch(ticket, 0, 0).state, State::kLater);
  relay.end(*part, WcStatus::kSuccess);
  EXPECT_EQ(relay.fetch(ticket, 0, 0).state, State::kReady);
  EXPECT_EQ(relay.endings().count, 0u) << "its answer ends it";
}

TEST_F(GatewayRelay, LongRead_IsAskedInPartsAndItsRoomIsUsedAgain) {
  const auto bytes = bytes_of(3 * kWindow + 100, 9);
  uint32_t ticket;
  EXPECT_TRUE(relay.read(kKey, kAddress, bytes.size(), &ticket).is_taken());
  std::deque<Part> posted;
  size_t asked = 0, fetched = 0;
  while (fetched < bytes.size()) {
    while (const auto part = relay.next()) {
      EXPECT_EQ(part->address, kAddress + asked);
      asked += part->length;
      posted.push_back(*part);
    }
    EXPECT_LE(asked - fetched, kWindow);
    ASSERT_FALSE(posted.empty());
    const Part part = posted.front();
    posted.pop_front();
    const auto from = bytes.begin() + static_cast<ptrdiff_t>(part.address - kAddress);
    answer(part, {from, from + part.length});
    EXPECT_EQ(relay.fetch(ticket, part.address - kAddress, 1).state, State::kLater) << "it has not ended";
    relay.end(part, WcStatus::kSuccess);
    while (fetched < bytes.size()) {
      const auto length = static_cast<uint32_t>(std::min<size_t>(kMtu, bytes.size() - fetched));
      const auto got = relay.fetch(ticket, fetched, length);
      if (got.state != State::kReady) break;
      ASSERT_TRUE(std::equal(got.data, got.data + length, bytes.begin() + static_cast<ptrdiff_t>(fetched)));
      fetched += length;
    }
  }
  relay.release(ticket);
  EXPECT_EQ(relay.fetch(ticket, 0, 1).state, State::kFailed);
}

TEST_F(GatewayRelay, EmptyRead_IsAnsweredWhenItHasEnded) {
  uint32_t ticket;
  EXPECT_TRUE(relay.read(kKey, kAddress, 0, &ticket).is_taken());
  EXPECT_EQ(relay.fetch(ticket, 0, 0).state, State::kLater);
  const auto part = relay.next();
  ASSERT_TRUE(part);
  EXPECT_FALSE(relay.next());
  relay.end(*part, WcStatus::kSuccess);
  EXPECT_EQ(relay.fetch(ticket, 0, 0).state, State::kReady);
}

TEST_F(GatewayRelay, RequestBehindARead_WaitsUntilTheReadWasAskedWhole) {
  uint32_t ticket;
  EXPECT_TRUE(relay.read(kKey, kAddress, 2 * kWindow, &ticket).is_taken());
  EXPECT_TRUE(write(bytes_of(8, 1)).is_taken());
  size_t reads = 0;
  while (const auto part = relay.next()) {
    EXPECT_EQ(part->opcode, Opcode::kRdmaRead);
    reads += part->length;
  }
  EXPECT_EQ(reads, kWindow);
}

TEST_F(GatewayRelay, ReleasedRead_IsNotAskedAndItsRoomIsFreeWhenItsPartsHaveEnded) {
  uint32_t first, second;
  EXPECT_TRUE(relay.read(kKey, kAddress, 2 * kWindow, &first).is_taken());
  EXPECT_TRUE(relay.read(kKey, kAddress, kWindow, &second).is_taken());
  std::vector<Part> parts;
  while (const auto part = relay.next()) parts.push_back(*part);
  ASSERT_EQ(parts.size(), 2u);
  relay.release(first);
  EXPECT_FALSE(relay.next()) << "its parts may still write to the ring";
  for (const Part& part : parts) relay.end(part, WcStatus::kSuccess);
  const auto next = relay.next();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->ticket, second);
}

TEST_F(GatewayRelay, Atomic_ValueFoundIsTheAnswer) {
  uint32_t ticket;
  EXPECT_TRUE(relay.atomic(core::AtomicOp::kCompareSwap, kKey, kAddress, 1, 2, &ticket).is_taken());
  const auto part = relay.next();
  ASSERT_TRUE(part);
  EXPECT_EQ(part->opcode, Opcode::kCompareSwap);
  EXPECT_EQ(part->compare_add, 1u);
  EXPECT_EQ(part->swap, 2u);
  EXPECT_EQ(part->length, 8u);
  answer(*part, bytes_of(8, 4));
  relay.end(*part, WcStatus::kSuccess);
  const auto got = relay.fetch(ticket, 0, 8);
  ASSERT_EQ(got.state, State::kReady);
  EXPECT_TRUE(std::equal(got.data, got.data + 8, bytes_of(8, 4).begin()));
  EXPECT_EQ(relay.endings().count, 0u);
}

TEST_F(GatewayRelay, Failure_OnlyTheFirstIsReported) {
  uint32_t ticket;
  EXPECT_TRUE(write(bytes_of(8, 1)).is_taken());
  EXPECT_TRUE(relay.read(kKey, kAddress, 8, &ticket).is_taken());
  EXPECT_TRUE(write(bytes_of(8, 1)).is_taken());
  std::vector<Part> parts;
  while (const auto part = relay.next()) parts.push_back(*part);
  relay.end(parts[0], WcStatus::kSuccess);
  relay.end(parts[1], WcStatus::kRemAccessErr);
  relay.end(parts[2], WcStatus::kWrFlushErr);
  EXPECT_EQ(relay.endings().count, 1u);
  EXPECT_EQ(relay.endings().next, WcStatus::kSuccess) << "the READ has failed, and the WRITE is its consequence";
  const auto got = relay.fetch(ticket, 0, 8);
  EXPECT_EQ(got.state, State::kFailed);
  EXPECT_EQ(got.status, WcStatus::kRemAccessErr);
}

TEST_F(GatewayRelay, FailedWrite_IsTheNextEnding) {
  EXPECT_TRUE(write(bytes_of(8, 1)).is_taken());
  EXPECT_TRUE(write(bytes_of(8, 1)).is_taken());
  const Part first = *relay.next();
  const Part second = *relay.next();
  relay.end(first, WcStatus::kRnrRetryExcErr);
  relay.end(second, WcStatus::kWrFlushErr);
  EXPECT_EQ(relay.endings().count, 0u);
  EXPECT_EQ(relay.endings().next, WcStatus::kRnrRetryExcErr);
}

TEST_F(GatewayRelay, WaitForAReceive_EndsWithTheRequest) {
  EXPECT_TRUE(send(bytes_of(8, 1)).is_taken());
  const Part part = *relay.next();
  EXPECT_TRUE(relay.note_waiting(true));
  EXPECT_FALSE(relay.note_waiting(true));
  EXPECT_TRUE(relay.endings().awaits_receive);
  relay.end(part, WcStatus::kSuccess);
  EXPECT_FALSE(relay.endings().awaits_receive);
}

TEST_F(GatewayRelay, EmptyRing_StartsAgainAtItsBeginning) {
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(write(bytes_of(5000, i)).is_taken());
    const Part part = *relay.next();
    EXPECT_EQ(part.position, 0u) << "few pages are touched";
    EXPECT_EQ(content(part), bytes_of(5000, i));
    relay.end(part, WcStatus::kSuccess);
  }
}

/// Requests of all kinds at random, which end at random times. The far end's memory is an array.
TEST_F(GatewayRelay, RandomRequests_EveryByteArrives) {
  std::mt19937 random(5);
  constexpr size_t kFar = 300000;
  std::vector<std::byte> far(kFar), model(kFar);
  struct Read {
    uint32_t ticket;
    size_t at, length;
    std::vector<std::byte> wanted;
    size_t fetched;
  };
  std::deque<Read> reads;
  std::deque<Part> posted;
  uint64_t taken = 0;
  std::vector<std::byte> pending;  // a WRITE on its way into the relay
  size_t pending_at = 0, pending_offset = 0;
  for (int step = 0; step < 30000; ++step) {
    switch (random() % 4) {
      case 0: {  // the peer
        if (pending.empty() && random() % 3 == 0 && reads.size() < 20) {
          const size_t length = random() % 10 == 0 ? random() % 200000 : random() % 6000;
          const size_t at = random() % (kFar - length);
          uint32_t ticket;
          if (!relay.read(kKey, at, length, &ticket).is_taken()) break;
          reads.push_back(
              {ticket,
               at,
               length,
               {model.begin() + static_cast<ptrdiff_t>(at), model.begin() + static_cast<ptrdiff_t>(at + length)},
               0});
          break;
        }
        if (pending.empty()) {
          pending = bytes_of(1 + random() % (random() % 10 == 0 ? 200000 : 6000), random());
          pending_at = random() % (kFar - pending.size());
          pending_offset = 0;
        }
        for (int packet = 0; packet < 20 && pending_offset < pending.size(); ++packet) {
          const size_t length = std::min<size_t>(kMtu, pending.size() - pending_offset);
          Piece piece{pending.data() + pending_offset, length};
          const Verdict verdict = relay.write({pending_offset == 0, pending_offset + length == pending.size(), false,
                                               false, &piece, 1, length, pending.size(), pending_at, kKey, 0},
                                              {});
          if (verdict.is_not_served()) break;
          pending_offset += length;
          if (!verdict.is_taken()) continue;
          ++taken;
          std::copy(pending.begin(), pending.end(), model.begin() + static_cast<ptrdiff_t>(pending_at));
          pending.clear();
          break;
        }
        break;
      }
      case 1:  // the gateway
        if (posted.size() < 16)
          if (const auto part = relay.next()) posted.push_back(*part);
        break;
      case 2:  // the far end executes in order
        if (posted.empty()) break;
        if (posted.front().has_answer) {
          const auto from = far.begin() + static_cast<ptrdiff_t>(posted.front().address);
          answer(posted.front(), {from, from + posted.front().length});
        } else {
          const auto bytes = content(posted.front());
          std::copy(bytes.begin(), bytes.end(), far.begin() + static_cast<ptrdiff_t>(posted.front().address));
        }
        relay.end(posted.front(), WcStatus::kSuccess);
        posted.pop_front();
        break;
      default: {  // answers leave in order
        if (reads.empty()) break;
        Read& read = reads.front();
        const auto length = static_cast<uint32_t>(std::min<size_t>(kMtu, read.length - read.fetched));
        const auto got = relay.fetch(read.ticket, read.fetched, length);
        if (got.state != State::kReady) break;
        ASSERT_TRUE(std::equal(got.data, got.data + length, read.wanted.begin() + static_cast<ptrdiff_t>(read.fetched)))
            << "step " << step;
        read.fetched += length;
        if (read.fetched < read.length) break;
        relay.release(read.ticket);
        reads.pop_front();
      }
    }
  }
  EXPECT_GT(taken, 100u);
  EXPECT_LE(relay.endings().count, taken);
}

}  // namespace
}  // namespace nupa::gateway
