// SPDX-License-Identifier: Apache-2.0
/// How records lie in header lines, and that no content of a line is taken for a record that breaks the rules.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "transport/pool/grants.h"
#include "transport/pool/records.h"

namespace nupa::pool {
namespace {

using record_flag::kFirst;
using record_flag::kImmediate;
using record_flag::kInvalidate;
using record_flag::kLast;
using record_flag::kSolicited;
using record_flag::kWhole;

std::vector<std::byte> bytes_of(size_t length) {
  std::vector<std::byte> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

Record common(RecordKind kind) {
  Record record;
  record.kind = kind;
  record.qp_num = 0x123456;
  record.source_qp = 0xabcdef;
  record.sequence = 0x1234;
  record.ack = 0xfedc;
  record.traits = record_trait::kAcks;
  record.credits = 11;
  return record;
}

/// The record as its reader gets it.
std::optional<Record> through(const Record& record, Header* header) {
  const auto payload = bytes_of(record.length);
  encode(record, payload.data(), header);
  return decode(*header);
}

void expect_same(const Record& sent, const Record& seen) {
  EXPECT_EQ(sent.kind, seen.kind);
  EXPECT_EQ(sent.flags, seen.flags);
  EXPECT_EQ(sent.traits, seen.traits);
  EXPECT_EQ(sent.qp_num, seen.qp_num);
  EXPECT_EQ(sent.source_qp, seen.source_qp);
  EXPECT_EQ(sent.sequence, seen.sequence);
  EXPECT_EQ(sent.ack, seen.ack);
  EXPECT_EQ(sent.credits, seen.credits);
  EXPECT_EQ(sent.length, seen.length);
  EXPECT_EQ(sent.immediate, seen.immediate);
  EXPECT_EQ(sent.srqn, seen.srqn);
  EXPECT_EQ(sent.rkey, seen.rkey);
  EXPECT_EQ(sent.address, seen.address);
  EXPECT_EQ(sent.offset, seen.offset);
  EXPECT_EQ(sent.total, seen.total);
  EXPECT_EQ(sent.operation, seen.operation);
  EXPECT_EQ(sent.operand, seen.operand);
  EXPECT_EQ(sent.swap, seen.swap);
  EXPECT_EQ(sent.qkey, seen.qkey);
  EXPECT_EQ(sent.from_port, seen.from_port);
  EXPECT_EQ(sent.to_port, seen.to_port);
  EXPECT_EQ(sent.grant, seen.grant);
  EXPECT_EQ(sent.bytes, seen.bytes);
  EXPECT_EQ(sent.place, seen.place);
  EXPECT_EQ(sent.flush, seen.flush);
}

std::vector<Record> records_of_all_kinds() {
  std::vector<Record> all;
  Record send = common(RecordKind::kSend);
  send.flags = kWhole | kImmediate | kSolicited;
  send.immediate = 0xdeadbeef;
  send.length = send.total = 8;
  all.push_back(send);
  send.flags = kWhole | kInvalidate;
  send.traits |= record_trait::kXrc;
  send.srqn = 0x77777;
  send.length = send.total = 5000;
  all.push_back(send);
  Record part = common(RecordKind::kWrite);
  part.flags = kFirst;
  part.rkey = 0x11223344;
  part.address = 0x1122334455667788;
  part.length = kMaxPartBytes;
  part.total = 1u << 31;
  all.push_back(part);
  part.flags = kLast | kImmediate;
  part.immediate = 9;
  part.offset = (1u << 31) - kMaxPartBytes;
  all.push_back(part);
  Record read = common(RecordKind::kRead);
  read.rkey = 1;
  read.address = 2;
  read.total = 1u << 31;
  all.push_back(read);
  Record answer = common(RecordKind::kReadAnswer);
  answer.flags = kWhole;
  answer.length = answer.total = 44;
  all.push_back(answer);
  Record atomic = common(RecordKind::kAtomic);
  atomic.operation = core::AtomicOp::kWrite;
  atomic.rkey = 3;
  atomic.address = 4;
  atomic.operand = 5;
  atomic.swap = 6;
  atomic.total = 8;
  atomic.traits |= record_trait::kXrc | record_trait::kResent;
  atomic.srqn = 7;
  all.push_back(atomic);
  Record flush = common(RecordKind::kFlush);
  flush.flush = 0x11;
  flush.rkey = 0x11223344;
  flush.address = 0x1122334455667788;
  flush.total = 1u << 31;
  all.push_back(flush);
  Record found = common(RecordKind::kAtomicAnswer);
  found.operand = ~uint64_t{0};
  all.push_back(found);
  Record datagram = common(RecordKind::kDatagram);
  datagram.flags = kImmediate;
  datagram.immediate = 1;
  datagram.qkey = 0x11111111;
  datagram.length = kMaxDatagramBytes;
  all.push_back(datagram);
  Record mad = common(RecordKind::kMad);
  mad.traits = record_trait::kForProbe;
  mad.credits = 0;
  mad.length = kMadPayloadBytes;
  mad.from_port = 0x8001;
  mad.to_port = 2;
  all.push_back(mad);
  return all;
}

TEST(PoolRecords, Encode_EachKind_ReaderSeesTheSameFields) {
  for (const Record& sent : records_of_all_kinds()) {
    Header header;
    const auto seen = through(sent, &header);
    ASSERT_TRUE(seen) << static_cast<int>(sent.kind);
    expect_same(sent, *seen);
    EXPECT_EQ(sent.length > inline_room(sent), header.payload_lines > 0);
    if (header.payload_lines > 0) {
      EXPECT_EQ(lines_of(sent.length), header.payload_lines);
      continue;
    }
    const auto payload = bytes_of(sent.length);
    if (sent.length > 0) {
      EXPECT_EQ(0, std::memcmp(payload.data(), seen->inlined, payload.size()));
    }
  }
}

TEST(PoolRecords, Encode_RecordsAboutGrants_TakeOneLine) {
  Record placed = common(RecordKind::kPlaced);
  placed.flags = kLast | kImmediate | kSolicited;
  placed.immediate = 3;
  placed.rkey = 0x11223344;
  placed.address = 0x1122334455667788;
  placed.length = kMaxPartBytes;
  placed.offset = (1u << 31) - kMaxPartBytes;
  placed.total = 1u << 31;
  placed.grant = Grants::kMostNumber;
  Record grant = common(RecordKind::kGrant);
  grant.grant = 7;
  grant.rkey = 0x11223344;
  grant.address = ~uint64_t{0};
  grant.bytes = uint64_t{1} << 45;
  grant.place = (uint64_t{1} << 46) - 4096;
  Record asks = common(RecordKind::kAskBack);
  asks.grant = Grants::kMostNumber;
  for (const Record& sent : {placed, grant, asks}) {
    Header header;
    encode(sent, nullptr, &header);
    EXPECT_EQ(0u, header.payload_lines);
    const auto seen = decode(header);
    ASSERT_TRUE(seen) << static_cast<int>(sent.kind);
    expect_same(sent, *seen);
    EXPECT_EQ(nullptr, seen->inlined);
  }
}

TEST(PoolRecords, Decode_RecordsAboutGrantsThatBreakTheRules_AreGarbage) {
  const auto refused = [](RecordKind kind, auto&& change) {
    Record record = common(kind);
    if (kind == RecordKind::kPlaced) {
      record.flags = kWhole;
      record.length = record.total = 5000;
    }
    record.grant = 1;
    record.bytes = 1;
    change(record);
    Header header;
    encode(record, nullptr, &header);
    return !decode(header);
  };
  const auto as_it_is = [](Record&) {};
  EXPECT_FALSE(refused(RecordKind::kPlaced, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kPlaced, [](Record& record) { record.length = kMaxPartBytes + 1; }));
  EXPECT_TRUE(refused(RecordKind::kPlaced, [](Record& record) { record.flags = kFirst; })) << "the whole message";
  EXPECT_TRUE(refused(RecordKind::kPlaced, [](Record& record) { record.flags |= kInvalidate; }));
  EXPECT_FALSE(refused(RecordKind::kGrant, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kGrant, [](Record& record) { record.grant = 0; }));
  EXPECT_TRUE(refused(RecordKind::kGrant, [](Record& record) { record.bytes = 0; }));
  EXPECT_FALSE(refused(RecordKind::kAskBack, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kAskBack, [](Record& record) { record.grant = 0; }));
  // Payload in the header line, of a record that has none.
  Record record = common(RecordKind::kPlaced);
  record.flags = kWhole;
  record.length = record.total = 5000;
  Header header;
  encode(record, nullptr, &header);
  header.tag = static_cast<uint16_t>(header.tag | 4 << 10);
  EXPECT_FALSE(decode(header));
}

TEST(PoolRecords, Return_OfAGrant_IsAnAnswer) {
  for (const uint32_t number : {1u, 0x10000u, Grants::kMostNumber}) {
    const auto seen = answer_of(word_of(return_of(0xabcdef, number)));
    ASSERT_TRUE(seen);
    EXPECT_EQ(0xabcdefu, seen->qp_num);
    EXPECT_EQ(Outcome::kReturned, seen->outcome);
    EXPECT_EQ(number, grant_of(*seen));
  }
}

TEST(PoolRecords, Credits_AreNoMoreThanTheReceives) {
  EXPECT_EQ(0u, credits_of(0));
  for (uint64_t receives = 1; receives < 3000; ++receives) {
    const uint8_t code = credits_of(receives);
    ASSERT_LT(code, kCredits.size());
    EXPECT_LE(kCredits[code], receives);
    if (size_t{code} + 1 < kCredits.size()) {
      EXPECT_GT(kCredits[code + 1], receives);
    }
  }
}

TEST(PoolRecords, Encode_SmallMessages_TakeOneLine) {
  Record send = common(RecordKind::kSend);
  send.flags = kWhole;
  EXPECT_EQ(45u, inline_room(send));
  send.flags |= kImmediate;
  EXPECT_EQ(41u, inline_room(send));
  Record write = common(RecordKind::kWrite);
  write.flags = kWhole;
  EXPECT_EQ(33u, inline_room(write));
  Record answer = common(RecordKind::kReadAnswer);
  answer.flags = kWhole;
  EXPECT_EQ(45u, inline_room(answer));
}

TEST(PoolRecords, Decode_PartsThatBreakTheRules_AreGarbage) {
  const auto refused = [](auto&& change) {
    Record record = common(RecordKind::kSend);
    record.flags = kFirst;
    record.length = 100;
    record.total = 200;
    change(record);
    Header header;
    return !through(record, &header);
  };
  EXPECT_FALSE(refused([](Record&) {}));
  EXPECT_TRUE(refused([](Record& record) { record.total = 100; }));  // last, and not marked
  EXPECT_TRUE(refused([](Record& record) { record.flags = 0; }));    // first, and not marked
  EXPECT_TRUE(refused([](Record& record) { record.offset = 1; }));   // not first, and marked
  EXPECT_TRUE(refused([](Record& record) {
    record.flags = kLast;
    record.offset = 99;
  }));  // not last, and marked
  EXPECT_TRUE(refused([](Record& record) {
    record.flags = kLast;
    record.offset = 101;
  }));  // beyond the message
  EXPECT_FALSE(refused([](Record& record) {
    record.flags = kLast;
    record.offset = 100;
  }));
  EXPECT_TRUE(refused([](Record& record) { record.total = (1u << 31) + 1; }));  // longer than any message
  EXPECT_TRUE(refused([](Record& record) { record.length = 0; }));              // an empty part
  EXPECT_TRUE(refused([](Record& record) {
    record.length = kMaxPartBytes + 1;
    record.total = 1 << 20;
  }));
  EXPECT_TRUE(refused([](Record& record) { record.flags |= kImmediate | kInvalidate; }));
  EXPECT_TRUE(refused([](Record& record) { record.traits = 0; })) << "credits without an acknowledgement";
}

TEST(PoolRecords, Decode_WrongLengthsOfKinds_AreGarbage) {
  const auto refused = [](RecordKind kind, uint32_t length, auto&& change) {
    Record record = common(kind);
    record.length = length;
    change(record);
    Header header;
    return !through(record, &header);
  };
  const auto as_it_is = [](Record&) {};
  EXPECT_FALSE(refused(RecordKind::kRead, 0, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kRead, 1, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kRead, 0, [](Record& record) { record.total = (1u << 31) + 1; }));
  EXPECT_TRUE(refused(RecordKind::kRead, 0, [](Record& record) { record.flags = kFirst; }));
  EXPECT_FALSE(refused(RecordKind::kFlush, 0, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kFlush, 1, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kFlush, 0, [](Record& record) { record.total = (1u << 31) + 1; }));
  EXPECT_TRUE(refused(RecordKind::kAtomic, 1, as_it_is));
  EXPECT_TRUE(
      refused(RecordKind::kAtomic, 0, [](Record& record) { record.operation = static_cast<core::AtomicOp>(3); }));
  EXPECT_TRUE(refused(RecordKind::kAtomicAnswer, 100, as_it_is));
  EXPECT_FALSE(refused(RecordKind::kDatagram, 40, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kDatagram, 39, as_it_is));
  EXPECT_FALSE(refused(RecordKind::kDatagram, kMaxDatagramBytes, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kDatagram, kMaxDatagramBytes + 1, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kDatagram, 40, [](Record& record) { record.flags = kFirst; }));
  EXPECT_FALSE(refused(RecordKind::kMad, kMadPayloadBytes, as_it_is));
  EXPECT_TRUE(refused(RecordKind::kMad, kMadPayloadBytes - 1, as_it_is));
}

TEST(PoolRecords, Decode_LengthThatDiffersFromTheLines_IsGarbage) {
  Record record = common(RecordKind::kSend);
  record.flags = kWhole;
  record.length = record.total = 1000;
  Header header;
  ASSERT_TRUE(through(record, &header));
  ++header.payload_lines;
  EXPECT_FALSE(decode(header));
  header.payload_lines -= 2;
  EXPECT_FALSE(decode(header));
}

TEST(PoolRecords, Decode_UnknownKind_IsGarbage) {
  Header header;
  EXPECT_FALSE(decode(header));
  header.tag = kLastKind + 1;
  EXPECT_FALSE(decode(header));
  EXPECT_FALSE(kind_of(header));
}

TEST(PoolRecords, Decode_RandomLines_NoneBreaksTheRules) {
  std::mt19937_64 random(4711);
  uint32_t taken = 0;
  for (int round = 0; round < 200'000; ++round) {
    Header header;
    for (std::byte& byte : header.bytes) byte = static_cast<std::byte>(random());
    header.tag = static_cast<uint16_t>(random());
    if (round % 2 == 0) header.bytes[10] = static_cast<std::byte>(random() & 15);
    header.payload_lines = static_cast<uint16_t>(round % 3 == 0 ? 0 : random() % 1100);
    Answer answers[kMaxAnswers];
    EXPECT_LE(decode_answers(header, answers), kMaxAnswers);
    const auto record = decode(header);
    if (!record) continue;
    ++taken;
    EXPECT_LE(record->length, kMaxPartBytes);
    EXPECT_LT(record->credits, kCredits.size());
    EXPECT_LE(uint64_t{record->offset} + (record->kind == RecordKind::kSend ? record->length : 0), uint64_t{1} << 31);
    if (record->inlined != nullptr) {
      EXPECT_GE(record->inlined, header.bytes);
      EXPECT_LE(record->inlined + record->length, header.bytes + sizeof header.bytes);
    }
  }
  EXPECT_GT(taken, 200u);
}

TEST(PoolRecords, Answers_UpToSeven_ReaderSeesTheSame) {
  std::vector<Answer> sent;
  std::vector<uint64_t> words;
  for (uint32_t i = 0; i < kMaxAnswers; ++i) {
    sent.push_back({0xfffff0 + i, static_cast<uint16_t>(0xffff - i), static_cast<Outcome>(i % 6),
                    static_cast<uint8_t>(i % 6 == 5   ? 5
                                         : i % 6 == 0 ? 15
                                                      : 31 - i),
                    static_cast<uint16_t>(kParts - 1 - i)});
    words.push_back(word_of(sent.back()));
    Header header;
    encode_answers(words, &header);
    Answer seen[kMaxAnswers];
    ASSERT_EQ(words.size(), decode_answers(header, seen));
    for (size_t j = 0; j < sent.size(); ++j) EXPECT_EQ(sent[j], seen[j]);
  }
}

TEST(PoolRecords, Answers_ThatBreakTheRules_AreGarbage) {
  EXPECT_FALSE(answer_of(0));
  EXPECT_FALSE(answer_of(word_of({0, 1, Outcome::kDone, 0, 0})));
  EXPECT_FALSE(answer_of(word_of({1, 1, static_cast<Outcome>(7), 0, 0})));
  EXPECT_FALSE(answer_of(word_of({1, 1, Outcome::kRefused, 6, 0})));
  EXPECT_TRUE(answer_of(word_of({1, 1, Outcome::kRefused, 5, 0})));
  EXPECT_FALSE(answer_of(word_of({1, 1, Outcome::kDone, 16, 0})));
  EXPECT_TRUE(answer_of(word_of({1, 1, Outcome::kDone, 15, 0})));
  const uint64_t word = word_of({1, 1, Outcome::kDone, 0, 0});
  Header header;
  encode_answers({&word, 1}, &header);
  Answer seen[kMaxAnswers];
  EXPECT_EQ(1u, decode_answers(header, seen));
  Header wrong = header;
  wrong.payload_lines = 1;
  EXPECT_EQ(0u, decode_answers(wrong, seen));
  wrong = header;
  wrong.tag = static_cast<uint16_t>(wrong.tag + (1 << 10));  // 9 bytes
  EXPECT_EQ(0u, decode_answers(wrong, seen));
  wrong = header;
  wrong.tag = static_cast<uint16_t>(wrong.tag | 1 << 5);  // a flag
  EXPECT_EQ(0u, decode_answers(wrong, seen));
  wrong = header;
  wrong.tag = static_cast<uint16_t>(63 << 10 | static_cast<int>(RecordKind::kAnswers));
  EXPECT_EQ(0u, decode_answers(wrong, seen));
  EXPECT_FALSE(decode(header)) << "answers are no other record";
}

TEST(PoolRecords, PartBytes_AnyRing_FitAQuarterOfIt) {
  for (uint32_t lines = 16; lines <= 1u << 20; lines *= 2) {
    EXPECT_LT(lines_of(part_bytes_of(lines)), ring::longest_record(lines)) << lines;
    EXPECT_LE(part_bytes_of(lines), kMaxPartBytes);
  }
  EXPECT_EQ(kMaxPartBytes, part_bytes_of(1u << 13));
}

}  // namespace
}  // namespace nupa::pool
