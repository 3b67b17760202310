// SPDX-License-Identifier: Apache-2.0
/// Tests of WRITE, READ and atomics at a responder, and of the rights that they need.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "responder_fixture.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {
namespace {

// ---- WRITE and its rights (9.4.1.1.3, 9.7.4.1.5).

TEST_F(RoceResponder, WriteWithoutTheRight_IsARemoteAccessErrorAndWritesNothing) {
  struct Case {
    const char* what;
    uint32_t key;
    uint64_t address;
    uint32_t rights;
  };
  const Case cases[] = {
      {"wrong key", kKey + 1, kBase, access::kRemoteWrite},
      {"before the region", kKey, kBase - 1, access::kRemoteWrite},
      {"one byte beyond it", kKey, kBase + kMemoryBytes - 7, access::kRemoteWrite},
      {"no right to write", kKey, kBase, access::kRemoteRead | access::kRemoteAtomic},
  };
  for (const Case& each : cases) {
    begin(options);
    host->rights = each.rights;
    Packet packet = request(Operation::kWriteOnly, kFirstPsn, 8);
    packet.rkey = each.key;
    packet.address = each.address;
    expect_refused(answers_to(packet), kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr, each.what);
    EXPECT_TRUE(memory_is_untouched()) << each.what;
  }
}

TEST_F(RoceResponder, WriteThatEndsBeyondItsRegion_IsRefusedAtItsFirstPacket) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.address = kBase + kMemoryBytes - kMtu - 7;
  first.length = kMtu + 8;
  expect_refused(answers_to(first), kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr,
                 "8 bytes, room for 7");
  EXPECT_TRUE(memory_is_untouched());
}

TEST_F(RoceResponder, WriteWhoseKeyIsRevokedMeanwhile_IsARemoteAccessError) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.length = 2 * kMtu;
  receive(first);
  answers();
  host->key = 1;
  expect_refused(answers_to(request(Operation::kWriteLast, kFirstPsn + 1, kMtu)), kFirstPsn + 1, 0,
                 NakCode::kRemoteAccess, EventType::kQpAccessErr, "deregistered");
}

TEST_F(RoceResponder, WriteToUnreachableMemory_IsARemoteOperationError) {
  host->written = false;
  expect_refused(answers_to(request(Operation::kWriteOnly, kFirstPsn, 8)), kFirstPsn, 0, NakCode::kRemoteOperation,
                 EventType::kQpFatal, "out of reach");
}

TEST_F(RoceResponder, Ibta9411_ZeroLengthWrite_NeedsNoKey) {
  Packet packet = request(Operation::kWriteOnly, kFirstPsn, 0);
  packet.rkey = 1;
  packet.address = 0;
  EXPECT_EQ(answers_to(packet), (Texts{"ACK 100 msn 1"}));
}

TEST_F(RoceResponder, PacketsOfAWrite_AreContiguousInMemory) {
  Packet first = request(Operation::kWriteFirst, kFirstPsn, kMtu);
  first.address = kBase + 3;
  first.length = 2 * kMtu + 5;
  receive(first);
  receive(request(Operation::kWriteMiddle, kFirstPsn + 1, kMtu));
  receive(request(Operation::kWriteLast, kFirstPsn + 2, 5));
  std::vector<std::byte> expected(kMemoryBytes);
  const auto bytes = pattern_bytes(kMtu);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 3);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 3 + kMtu);
  std::copy_n(bytes.begin(), 5, expected.begin() + 3 + 2 * kMtu);
  EXPECT_EQ(host->memory, expected);
  EXPECT_TRUE(host->received.empty()) << "a WRITE takes no receive";
}

// ---- READ and atomics (9.7.4.1.5, 9.7.5.1.9).

TEST_F(RoceResponder, Ibta97519_ReadOfSeveralPackets_UsesTheirPacketNumbers) {
  std::copy_n(pattern_bytes(3 * kMtu).begin(), 3 * kMtu, host->memory.begin());
  EXPECT_EQ(
      answers_to(read(kFirstPsn, 2 * kMtu + 1, kBase + 5)),
      (Texts{"RESPONSE_FIRST 100 256 bytes msn 1", "RESPONSE_MIDDLE 101 256 bytes", "RESPONSE_LAST 102 1 bytes msn 1"}))
      << "and no acknowledgement beside them";
  EXPECT_EQ(output.last.payload[0], pattern(5 + 2 * kMtu));
  EXPECT_EQ(answers_to(read(kFirstPsn + 3, 2 * kMtu)),
            (Texts{"RESPONSE_FIRST 103 256 bytes msn 2", "RESPONSE_LAST 104 256 bytes msn 2"}));
  EXPECT_EQ(answers_to(read(kFirstPsn + 5, kMtu)), (Texts{"RESPONSE_ONLY 105 256 bytes msn 3"}));
  EXPECT_EQ(answers_to(read(kFirstPsn + 6, 0)), (Texts{"RESPONSE_ONLY 106 0 bytes msn 4"}));
}

TEST_F(RoceResponder, ReadWithoutTheRight_IsARemoteAccessError) {
  struct Case {
    const char* what;
    uint32_t key;
    uint64_t address;
    uint32_t rights;
  };
  const Case cases[] = {
      {"wrong key", kKey + 1, kBase, access::kRemoteRead},
      {"one byte beyond the region", kKey, kBase + kMemoryBytes - 2 * kMtu + 1, access::kRemoteRead},
      {"no right to read", kKey, kBase, access::kRemoteWrite | access::kRemoteAtomic},
  };
  for (const Case& each : cases) {
    begin(options);
    host->rights = each.rights;
    Packet packet = read(kFirstPsn, 2 * kMtu, each.address);
    packet.rkey = each.key;
    expect_refused(answers_to(packet), kFirstPsn, 0, NakCode::kRemoteAccess, EventType::kQpAccessErr, each.what);
  }
  begin(options);
  Packet nothing = read(kFirstPsn, 0, 0);
  nothing.rkey = 1;
  EXPECT_EQ(answers_to(nothing), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"})) << "nothing needs no key";
}

TEST_F(RoceResponder, ReadWhoseKeyIsRevokedMeanwhile_EndsWithARemoteAccessErrorAndEvent) {
  receive(read(kFirstPsn, 3 * kMtu));
  responder->transmit(now, output, 1);
  output.take();
  host->key = 1;
  expect_refused(answers(), kFirstPsn + 1, 1, NakCode::kRemoteAccess, EventType::kQpAccessErr, "at the second packet");
}

TEST_F(RoceResponder, ReadOfUnreadableMemory_EndsWithARemoteOperationError) {
  receive(read(kFirstPsn, 8));
  receive(read(kFirstPsn + 1, 8));
  output.answer = Sent::kUnreadable;
  responder->transmit(now, output, 1);
  output.answer = Sent::kYes;
  expect_refused(answers(), kFirstPsn, 2, NakCode::kRemoteOperation, EventType::kQpFatal,
                 "and what follows is not sent");
}

TEST_F(RoceResponder, Ibta9741_MoreReadsThanMaxDestRdAtomic_IsAnInvalidRequest) {
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(read(kFirstPsn + i, 8));
  EXPECT_TRUE(host->refusals.empty());
  receive(read(kFirstPsn + kMaxRdAtomic, 8));
  ASSERT_EQ(host->refusals.size(), 1u);
  EXPECT_EQ(host->refusals[0], EventType::kQpReqErr);
  const Texts answered = answers();
  ASSERT_EQ(answered.size(), kMaxRdAtomic + 1u) << "those before are answered";
  EXPECT_EQ(answered.back(), "NAK 104 msn 4 code 1");
}

TEST_F(RoceResponder, MoreAtomicsThanMaxDestRdAtomic_IsAnInvalidRequestAndNotExecuted) {
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(atomic(Operation::kFetchAdd, kFirstPsn + i, 1));
  EXPECT_EQ(word(), kMaxRdAtomic);
  receive(atomic(Operation::kFetchAdd, kFirstPsn + kMaxRdAtomic, 1));
  EXPECT_EQ(word(), kMaxRdAtomic);
  ASSERT_EQ(host->refusals.size(), 1u);
  EXPECT_EQ(host->refusals[0], EventType::kQpReqErr);
}

TEST_F(RoceResponder, AnsweredReads_DoNotCountForMaxDestRdAtomic) {
  for (uint32_t i = 0; i < 3 * kMaxRdAtomic; ++i) EXPECT_EQ(answers_to(read(kFirstPsn + i, 8)).size(), 1u);
  // Nor do repetitions.
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(read(kFirstPsn + i, 8));
  for (uint32_t i = 0; i < kMaxRdAtomic; ++i) receive(read(kFirstPsn + 3 * kMaxRdAtomic + i, 8));
  EXPECT_TRUE(host->refusals.empty());
  EXPECT_EQ(answers().size(), 2 * kMaxRdAtomic);
}

TEST_F(RoceResponder, Read_NoRoomBesideRepetitions_IsDroppedAndTakenLater) {
  constexpr uint32_t kPackets = 100;  // more than responses that can wait
  EXPECT_EQ(answers_to(read(kFirstPsn, kPackets * kMtu)).size(), kPackets);
  for (const bool nupa_peer : {false, true}) {
    // Each packet of an old READ was lost alone, and is asked for alone.
    const uint64_t before = responder->counters().dropped;
    for (uint32_t i = 0; i < kPackets; ++i) receive(read(kFirstPsn + i, kMtu, kBase + i * kMtu));
    const uint64_t repetitions = responder->counters().dropped - before;
    EXPECT_GT(repetitions, 0u) << "no room";
    const uint32_t psn = kFirstPsn + kPackets + nupa_peer;
    const Packet fresh = read(psn, 8);
    receive(nupa_peer ? nupa(fresh) : fresh);
    EXPECT_TRUE(host->refusals.empty()) << "the peer has done nothing wrong";
    EXPECT_EQ(responder->counters().dropped - before, repetitions + 1);
    EXPECT_EQ(answers().size(), kPackets - repetitions);
    const Texts answered = answers_to(nupa_peer ? nupa(fresh) : fresh);
    ASSERT_FALSE(answered.empty());
    EXPECT_EQ(answered[0], "RESPONSE_ONLY " + std::to_string(psn) + " 8 bytes msn " + std::to_string(2 + nupa_peer));
  }
}

TEST_F(RoceResponder, Ibta9451_CompareSwap_SwapsOnlyAnEqualValue) {
  set_word(10);
  EXPECT_EQ(answers_to(atomic(Operation::kCompareSwap, kFirstPsn, 99, 11)), (Texts{"ATOMIC_ACK 100 found 10 msn 1"}));
  EXPECT_EQ(word(), 10u);
  EXPECT_EQ(answers_to(atomic(Operation::kCompareSwap, kFirstPsn + 1, 99, 10)),
            (Texts{"ATOMIC_ACK 101 found 10 msn 2"}));
  EXPECT_EQ(word(), 99u);
}

TEST_F(RoceResponder, InvalidAtomic_IsRefusedAndNotExecuted) {
  struct Case {
    const char* what;
    Operation operation;
    uint32_t key;
    uint64_t address;
    uint32_t rights;
    NakCode code;
    EventType event;
  };
  constexpr uint32_t kAll = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  const Case cases[] = {
      {"odd address", Operation::kFetchAdd, kKey, kBase + 4, kAll, NakCode::kInvalidRequest, EventType::kQpReqErr},
      {"odd address", Operation::kCompareSwap, kKey, kBase + 1, kAll, NakCode::kInvalidRequest, EventType::kQpReqErr},
      {"odd address", Operation::kAtomicWrite, kKey, kBase + 4, kAll, NakCode::kInvalidRequest, EventType::kQpReqErr},
      {"wrong key", Operation::kFetchAdd, 1, kBase, kAll, NakCode::kRemoteAccess, EventType::kQpAccessErr},
      {"beyond", Operation::kFetchAdd, kKey, kBase + kMemoryBytes, kAll, NakCode::kRemoteAccess,
       EventType::kQpAccessErr},
      {"no right", Operation::kFetchAdd, kKey, kBase, kAll & ~access::kRemoteAtomic, NakCode::kRemoteAccess,
       EventType::kQpAccessErr},
      {"no right", Operation::kAtomicWrite, kKey, kBase, kAll & ~access::kRemoteWrite, NakCode::kRemoteAccess,
       EventType::kQpAccessErr},
  };
  for (const Case& each : cases) {
    begin(options);
    host->rights = each.rights;
    Packet packet = request(each.operation, kFirstPsn, each.operation == Operation::kAtomicWrite ? 8 : 0);
    packet.swap_or_add = 1;
    packet.rkey = each.key;
    packet.address = each.address;
    const std::string why = std::string(name_of(each.operation)) + ": " + each.what;
    expect_refused(answers_to(packet), kFirstPsn, 0, each.code, each.event, why);
    EXPECT_TRUE(memory_is_untouched()) << why;
  }
}

TEST_F(RoceResponder, AtomicOnAWordUnalignedInTheProcess_IsAnInvalidRequest) {
  host->shift = 1;
  expect_invalid(answers_to(atomic(Operation::kFetchAdd, kFirstPsn, 1)), kFirstPsn, 0, "no atomics there");
  EXPECT_TRUE(memory_is_untouched());
}

TEST_F(RoceResponder, AtomicAtAnUnalignedAddress_IsAnInvalidRequest) {
  for (const Operation operation : {Operation::kFetchAdd, Operation::kCompareSwap, Operation::kAtomicWrite}) {
    begin(options);
    host->shift = 4;
    Packet packet = request(operation, kFirstPsn, operation == Operation::kAtomicWrite ? 8 : 0);
    packet.address = kBase + 4;
    packet.swap_or_add = 1;
    expect_invalid(answers_to(packet), kFirstPsn, 0, name_of(operation));
    EXPECT_TRUE(memory_is_untouched());
  }
}

TEST_F(RoceResponder, Ibta94113_EachRequest_NeedsItsOwnRightOnly) {
  struct Case {
    Operation operation;
    uint32_t right;
  };
  for (const Case& each : {Case{Operation::kWriteOnly, access::kRemoteWrite},
                           {Operation::kReadRequest, access::kRemoteRead},
                           {Operation::kFetchAdd, access::kRemoteAtomic},
                           {Operation::kCompareSwap, access::kRemoteAtomic},
                           {Operation::kAtomicWrite, access::kRemoteWrite}})
    for (const uint32_t right : {access::kRemoteWrite, access::kRemoteRead, access::kRemoteAtomic}) {
      begin(options);
      host->rights = right;
      const bool writes = each.right == access::kRemoteWrite;
      Packet packet = request(each.operation, kFirstPsn, writes ? 8 : 0);
      packet.length = 8;
      answers_to(packet);
      EXPECT_EQ(host->refusals.empty(), right == each.right) << name_of(each.operation) << " with right " << right;
    }
}

TEST_F(RoceResponder, AtomicWrite_OtherLengthThan8Bytes_IsAnInvalidRequest) {
  EXPECT_EQ(answers_to(request(Operation::kAtomicWrite, kFirstPsn, 8)), (Texts{"RESPONSE_ONLY 100 0 bytes msn 1"}));
  EXPECT_EQ(0, std::memcmp(host->memory.data(), pattern_bytes(8).data(), 8));
  for (const auto& [stated, bytes] : {std::pair{8u, 7u}, {8u, 9u}, {7u, 8u}, {9u, 8u}, {16u, 16u}, {0u, 0u}}) {
    begin(options);
    Packet packet = request(Operation::kAtomicWrite, kFirstPsn, bytes);
    packet.length = stated;
    expect_invalid(answers_to(packet), kFirstPsn, 0, std::to_string(stated) + " in the RETH, " + std::to_string(bytes));
    EXPECT_TRUE(memory_is_untouched());
  }
}

}  // namespace
}  // namespace nupa::roce::test
