// SPDX-License-Identifier: Apache-2.0
/// The ring of the pool transport between two hosts whose caches are not coherent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "incoherent_memory.h"
#include "transport/pool/medium/line_ring.h"
#include "transport/pool/medium/sleep.h"

namespace nupa::pool {
namespace {

using model::IncoherentMemory;
using model::ModelCpu;
using ModelPolicy = Flushed<model::ModelCpu>;

constexpr uint32_t kLines = 16;
constexpr uint32_t kRecords = 60;
constexpr uint64_t kLimit = 400'000;

/// The content of a record follows from its number, so that each byte can be checked.
struct Content {
  explicit Content(uint64_t number) : payload(number % 5 == 0 ? number * 37 % (3 * kLineBytes) : 0) {
    for (size_t i = 0; i < sizeof header.bytes; ++i) header.bytes[i] = static_cast<std::byte>(number * 7 + i);
    for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(number * 13 + i * 3 + 1);
    header.payload_lines = static_cast<uint16_t>(lines_of(payload.size()));
    header.tag = static_cast<uint16_t>(number * 11);
  }
  Header header;
  std::vector<std::byte> payload;
};

using Writer = RingWriter<ModelPolicy>;
using Reader = RingReader<ModelPolicy>;

void write_record(IncoherentMemory& memory, Writer& writer, uint64_t number) {
  const Content content(number);
  while (!writer.fits(content.header.payload_lines)) memory.pause();
  writer.store(0, content.payload.data(), content.payload.size());
  writer.publish(content.header);
}

void read_record(IncoherentMemory& memory, Reader& reader, uint64_t number) {
  Header header;
  Reader::Look look;
  while ((look = reader.look(&header)) == Reader::Look::kNothing) memory.pause();
  if (look == Reader::Look::kGarbage) memory.fault("garbage");
  const Content content(number);
  if (header.payload_lines != content.header.payload_lines) memory.fault("another number of lines");
  if (header.tag != content.header.tag || std::memcmp(header.bytes, content.header.bytes, sizeof header.bytes) != 0)
    memory.fault("a stale header");
  std::vector<std::byte> payload(content.payload.size());
  reader.load(0, payload.data(), payload.size());
  if (payload != content.payload) memory.fault("stale payload");
  reader.pop();
}

/// The lines of the ring, then the credit line.
struct Pair {
  explicit Pair(IncoherentMemory& shared)
      : memory(shared),
        writer(ModelPolicy(), shared.lines(), kLines, shared.lines() + kLines),
        reader(ModelPolicy(), shared.lines(), kLines, shared.lines() + kLines) {}

  void write(uint64_t number) { write_record(memory, writer, number); }
  void read(uint64_t number) { read_record(memory, reader, number); }

  IncoherentMemory& memory;
  Writer writer;
  Reader reader;
};

/// Without NUPA_SIM_RUNS each case takes seconds. A run takes four times as long as one of the simulator.
uint64_t seeds() {
  const char* const runs = std::getenv("NUPA_SIM_RUNS");
  return runs == nullptr ? 2000 : std::max(std::strtoull(runs, nullptr, 10) / 4, 1ull);
}

void expect_each_record(bool evicts) {
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    IncoherentMemory memory(seed, kLines + 1, 2, evicts);
    Pair pair(memory);
    const bool done = memory.run({[&] {
                                    for (uint64_t i = 0; i < kRecords; ++i) pair.write(i);
                                  },
                                  [&] {
                                    for (uint64_t i = 0; i < kRecords; ++i) pair.read(i);
                                  }},
                                 kLimit);
    ASSERT_TRUE(done) << "seed " << seed << ": " << (memory.fault().empty() ? "no progress" : memory.fault());
  }
}

TEST(ModelPoolRing, CachesThatEvictAndPrefetch_EachRecordArrivesWhole) { expect_each_record(true); }

TEST(ModelPoolRing, CachesThatKeepTheirLines_EachRecordArrivesWhole) { expect_each_record(false); }

TEST(ModelPoolRing, ReaderThatSleeps_IsRungForEachRecordThatItMissed) {
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    IncoherentMemory memory(seed, kLines + 2, 2, seed % 4 != 0);
    Pair pair(memory);
    Line* const sleep = memory.lines() + kLines + 1;  // of the reader
    uint64_t rings = 0;
    const bool done =
        memory.run({[&] {
                      ModelPolicy policy;
                      for (uint64_t i = 0; i < kRecords; ++i) {
                        pair.write(i);
                        if (is_asleep(policy, sleep)) ++rings;
                        for (uint64_t pauses = memory.below(2) * memory.below(60); pauses > 0; --pauses) memory.pause();
                      }
                    },
                    [&] {
                      ModelPolicy policy;
                      Header header;
                      const auto has_come = [&] { return pair.reader.look(&header) != Reader::Look::kNothing; };
                      for (uint64_t i = 0; i < kRecords;) {
                        if (has_come()) {
                          pair.read(i++);
                          continue;
                        }
                        const uint64_t seen = rings;
                        if (!fall_asleep([&](bool sleeps) { put_sleep(policy, sleep, sleeps); }, has_come)) continue;
                        while (rings == seen) memory.pause();
                        put_sleep(policy, sleep, false);
                      }
                    }},
                   kLimit);
    ASSERT_TRUE(done) << "seed " << seed << ": " << (memory.fault().empty() ? "it sleeps forever" : memory.fault());
  }
}

TEST(ModelPoolRing, CachesThatHoldAnEarlierRing_NoLineOfItIsTaken) {
  // A ring was at the same place before. Its lines are zero in memory, and caches still hold what they had.
  constexpr uint64_t kEarlier = 12;  // lines of the first turn; the reader reports within them
  constexpr uint64_t kAll = kEarlier + kRecords;
  const auto has_payload = [](uint64_t number) { return !Content(number).payload.empty(); };
  for (uint64_t seed = 1; seed <= seeds() / 4; ++seed) {
    IncoherentMemory memory(seed, kLines + 1, 2);
    Line* const lines = memory.lines();
    Line* const credit = lines + kLines;
    bool read = false, cleared = false;
    const auto wait_for = [&memory](const bool& event) {
      while (!event) memory.pause();
    };
    const bool done = memory.run({[&] {
                                    Writer earlier(ModelPolicy(), lines, kLines, credit);
                                    for (uint64_t i = 0; i < kEarlier; ++i)
                                      if (!has_payload(i)) write_record(memory, earlier, i);
                                    wait_for(read);
                                    for (const Line* line = lines; line < credit; ++line) ModelCpu::load(line->words);
                                    memory.clear();
                                    cleared = true;
                                    Writer writer(ModelPolicy(), lines, kLines, credit);
                                    for (uint64_t i = kEarlier; i < kAll; ++i) write_record(memory, writer, i);
                                  },
                                  [&] {
                                    Reader earlier(ModelPolicy(), lines, kLines, credit);
                                    for (uint64_t i = 0; i < kEarlier; ++i)
                                      if (!has_payload(i)) read_record(memory, earlier, i);
                                    read = true;
                                    while (!cleared) ModelCpu::load(credit->words);
                                    Reader reader(ModelPolicy(), lines, kLines, credit);
                                    for (uint64_t i = kEarlier; i < kAll; ++i) read_record(memory, reader, i);
                                  }},
                                 kLimit);
    ASSERT_TRUE(done) << "seed " << seed << ": " << (memory.fault().empty() ? "no progress" : memory.fault());
  }
}

TEST(ModelPoolRing, PayloadThatLooksLikeTheNextHeader_IsNotTakenForOne) {
  // Payload fills the line of a later header with the very word that this header will have.
  for (uint64_t seed = 1; seed <= seeds() / 4; ++seed) {
    IncoherentMemory memory(seed, kLines + 1, 2);
    Pair pair(memory);
    uint64_t taken = 0;
    memory.run({[&] {
                  Header header;
                  header.payload_lines = 3;
                  std::vector<uint64_t> forged(3 * kLineWords, ring::word_of(2, 0, 0));
                  for (int i = 0; i < 4; ++i) {  // the first turn of the ring
                    while (!pair.writer.fits(3)) memory.pause();
                    pair.writer.store(0, reinterpret_cast<const std::byte*>(forged.data()), 3 * kLineBytes);
                    pair.writer.publish(header);
                  }
                  header.payload_lines = 0;
                  while (!pair.writer.fits(0)) memory.pause();
                  pair.writer.publish(header);
                },
                [&] {
                  Header header;
                  for (int looks = 0; looks < 400; ++looks) {
                    const auto look = pair.reader.look(&header);
                    if (look == Reader::Look::kNothing) {
                      memory.pause();
                      continue;
                    }
                    ++taken;
                    pair.reader.pop();
                  }
                }},
               kLimit);
    ASSERT_LE(taken, 5u) << "seed " << seed << ": payload was taken for a header";
  }
}

TEST(ModelPoolRing, PayloadAtTheBeginningOfTheRing_IsNotTakenForALaterHeader) {
  std::vector<Line> lines(kLines + 1);
  RingWriter<Coherent> writer({}, lines.data(), kLines, &lines[kLines]);
  RingReader<Coherent> reader({}, lines.data(), kLines, &lines[kLines]);
  uint64_t position = 0;
  Header read;
  const auto pass = [&](uint16_t payload_lines) {
    // The header that the first line of the ring will have in the third turn.
    const std::vector<uint64_t> forged(payload_lines * kLineWords, ring::word_of(3, 0, 0));
    Header header;
    header.payload_lines = payload_lines;
    ASSERT_TRUE(writer.fits(payload_lines));
    writer.store(0, reinterpret_cast<const std::byte*>(forged.data()), payload_lines * kLineBytes);
    writer.publish(header);
    ASSERT_EQ(RingReader<Coherent>::Look::kRecord, reader.look(&read)) << position;
    reader.pop();
    position += 1 + payload_lines;
  };
  while (position < kLines - 3) pass(0);
  pass(3);
  while (position < 2 * kLines) pass(0);
  EXPECT_EQ(RingReader<Coherent>::Look::kNothing, reader.look(&read));
}

TEST(ModelPoolRing, WriterThatStopsAtAnyInstruction_LeavesWholeRecords) {
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    IncoherentMemory memory(seed, kLines + 1, 2);
    Pair pair(memory);
    const uint64_t last = memory.below(kRecords);
    uint64_t instructions = memory.below(20);
    uint64_t read = 0;
    memory.run({[&] {
                  for (uint64_t i = 0; i < last; ++i) pair.write(i);
                  // Stops within the next record: its payload is stored, and its header is not published.
                  const Content content(last);
                  while (!pair.writer.fits(content.header.payload_lines)) memory.pause();
                  pair.writer.store(0, content.payload.data(), content.payload.size());
                  while (instructions-- > 0) memory.pause();
                  memory.stop(0);
                  memory.pause();
                },
                [&] {
                  for (; read < last; ++read) pair.read(read);
                  Header header;
                  for (int looks = 0; looks < 50; ++looks)
                    if (pair.reader.look(&header) != Reader::Look::kNothing) memory.fault("half a record");
                }},
               kLimit);
    ASSERT_EQ(memory.fault(), "") << "seed " << seed;
    ASSERT_EQ(read, last) << "seed " << seed;
  }
}

TEST(ModelPoolRing, CreditForMoreThanWasWritten_IsIgnored) {
  IncoherentMemory memory(1, kLines + 1, 1);
  Writer writer(ModelPolicy(), memory.lines(), kLines, memory.lines() + kLines);
  uint32_t records = 0;
  memory.run({[&] {
               Line garbage;
               garbage.words[0] = kLines + 1;
               ModelPolicy().publish(memory.lines() + kLines, garbage);
               for (; records < 3 * kLines && writer.fits(0); ++records) writer.publish({});
             }},
             kLimit);
  EXPECT_EQ(records, kLines) << "lines that were not read are written again, or free lines are not used";
}

}  // namespace
}  // namespace nupa::pool
