// SPDX-License-Identifier: Apache-2.0
/// The directory and the blocks of the pool transport between hosts whose caches are not coherent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "incoherent_memory.h"
#include "transport/pool/medium/block_table.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/free_unused_blocks.h"

namespace nupa::pool {
namespace {

using model::IncoherentMemory;

/// A process was killed at an instruction.
struct Killed {};
/// The processor of a process that is killed when it has executed so many instructions.
struct KillableCpu {
  static constexpr uint64_t kNever = UINT64_MAX;
  inline static uint64_t left = kNever;  ///< of the one process that is to be killed

  explicit KillableCpu(bool mortal = false) : is_mortal(mortal) {}
  void step() const {
    if (is_mortal && left != kNever && left-- == 0) {
      left = kNever;
      throw Killed();
    }
  }
  uint64_t load(const uint64_t* word) const { return step(), model::ModelCpu::load(word); }
  void load_bytes(std::byte* to, const std::byte* from, size_t bytes) const {
    step();
    model::ModelCpu::load_bytes(to, from, bytes);
  }
  void store(uint64_t* word, uint64_t value) const { step(), model::ModelCpu::store(word, value); }
  void order_stores() const {}
  void write_back(const Line* line) const { step(), model::ModelCpu::write_back(line); }
  void invalidate(const Line* line) const { step(), model::ModelCpu::invalidate(line); }
  void store_fence() const { step(), model::ModelCpu::store_fence(); }
  void full_fence() const { step(), model::ModelCpu::full_fence(); }
  void load_fence() const {}
  bool is_mortal;
};
using ModelPolicy = Flushed<KillableCpu>;

constexpr uint64_t kLimit = 3'000'000;

/// A run takes as long as twenty of the simulator.
uint64_t seeds() {
  const char* const runs = std::getenv("NUPA_SIM_RUNS");
  return runs == nullptr ? 40 : std::max(std::strtoull(runs, nullptr, 10) / 20, 1ull);
}

/// The smallest pool: one record and a few blocks for each host.
HeaderLine header_of(uint32_t hosts) {
  HeaderLine header;
  header.hosts = hosts;
  header.bytes = kTerritoriesOffset + hosts * 2 * kTerritoryAlignment;
  header.block_bytes = 8192;
  header.ring_lines = kLeastRingLines;
  header.records = 2;
  return header;
}

/// A host of the model with one process at a time. The host's lock is not needed: its processes come one after another.
struct Host {
  Host(IncoherentMemory& memory, const Geometry& geometry, uint16_t number, bool is_mortal = false)
      : policy(KillableCpu(is_mortal)),
        directory(std::make_unique<Directory<ModelPolicy>>(policy, memory.lines(), geometry, number)),
        table(std::make_unique<BlockTable<ModelPolicy>>(policy, directory->at(geometry.block_line(number, 0)),
                                                        geometry.blocks())) {}
  void boot(uint64_t incarnation) {
    HostLine line;
    line.incarnation = incarnation;
    directory->take_host(line);
  }
  void join(uint64_t instance, uint64_t incarnation, const Description& description) {
    ProcessLine line;
    line.instance = instance;
    line.incarnation = incarnation;
    directory->begin_process(0, line, description, 1);
  }
  ModelPolicy policy;
  std::unique_ptr<Directory<ModelPolicy>> directory;
  std::unique_ptr<BlockTable<ModelPolicy>> table;
};

/// A description whose parts follow from one number, so that parts of two of them are noticed.
Description description_of(uint32_t number) {
  Description description;
  const size_t parts = number % 5 + 1;
  for (size_t i = 0; i < parts; ++i) {
    description.slots.push_back(number + static_cast<uint32_t>(i));
    Gid gid;
    std::memcpy(gid.raw.data(), &number, sizeof number);
    gid.raw[15] = static_cast<uint8_t>(i);
    description.gids.push_back(gid);
    description.groups.push_back(gid);
  }
  return description;
}
bool is_whole(const Description& description) {
  return !description.slots.empty() && description.gids == description_of(description.slots[0]).gids &&
         description.groups == description.gids && description.slots == description_of(description.slots[0]).slots;
}

TEST(ModelPoolDirectory, DescriptionThatChanges_IsReadWholeAndAtLastNew) {
  constexpr uint32_t kLast = 6;
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    const Geometry geometry(header_of(2));
    IncoherentMemory memory(seed, static_cast<uint32_t>(lines_of(geometry.bytes())), 2, seed % 4 != 0);
    const bool is_done = memory.run({[&] {
                                       Host host(memory, geometry, 0);
                                       host.boot(11);
                                       host.join(1, 11, description_of(1));
                                       for (uint32_t i = 2; i <= kLast; ++i) host.directory->publish(description_of(i));
                                     },
                                     [&] {
                                       Host host(memory, geometry, 1);
                                       for (uint32_t seen = 0; seen != kLast;) {
                                         const auto found = host.directory->describe({0, 0, 1});
                                         if (!found) continue;
                                         if (!is_whole(*found)) memory.fault("parts of two descriptions");
                                         if (found->slots[0] < seen)
                                           memory.fault("an older description after a newer one");
                                         seen = found->slots[0];
                                       }
                                     }},
                                    kLimit);
    ASSERT_TRUE(is_done) << "seed " << seed << ": " << (memory.fault().empty() ? "no progress" : memory.fault());
  }
}

TEST(ModelPoolDirectory, ProcessesOfOneRecord_KeepTheirDescriptions) {
  // A process ends, and the next one takes its record: no description is taken for that of the other process.
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    const Geometry geometry(header_of(2));
    IncoherentMemory memory(seed, static_cast<uint32_t>(lines_of(geometry.bytes())), 2, seed % 4 != 0);
    bool is_over = false;
    memory.run({[&] {
                  for (uint32_t i = 1; i < 5; ++i) {
                    Host host(memory, geometry, 0);
                    if (i == 1) host.boot(11);
                    host.join(i, 11, description_of(i));
                    host.directory->end_process(0);
                  }
                  is_over = true;
                },
                [&] {
                  Host host(memory, geometry, 1);
                  while (!is_over) {
                    const auto found = host.directory->find_record(0, 0);
                    if (!found) continue;
                    const auto description = host.directory->describe(*found);
                    if (description && (!is_whole(*description) || description->slots[0] != found->instance))
                      memory.fault("the description of another process");
                  }
                }},
               kLimit);
    ASSERT_EQ(memory.fault(), "") << "seed " << seed;
  }
}

/// Two processes open a channel to each other, and one of them may stop or close it at any step. An inbox is given away
/// only if the other host cannot write to it any more.
TEST(ModelPoolDirectory, InboxOfAClosedChannel_IsFreeOnlyWhenTheWriterHasStopped) {
  uint64_t freed = 0, kept = 0;
  for (uint64_t seed = 1; seed <= 4 * seeds(); ++seed) {
    const Geometry geometry(header_of(2));
    IncoherentMemory memory(seed, static_cast<uint32_t>(lines_of(geometry.bytes())), 2, seed % 4 != 0);
    const uint64_t patience = memory.below(2500);
    const uint64_t hesitation = memory.below(2) == 0 ? memory.below(3000) : 0;
    const uint64_t writes_for = memory.below(1500);
    bool is_free = false;
    const bool is_done = memory.run({[&] {
                                       // The owner: offers an inbox, takes the offer back after a while, and frees the
                                       // inbox when it may.
                                       Host host(memory, geometry, 0);
                                       host.boot(11);
                                       host.join(1, 11, description_of(1));
                                       while (host.directory->life({1, 0, 2}) == Life::kEnded) memory.pause();
                                       BlockLine wanted;
                                       wanted.word = block_word(BlockKind::kInbox, 0, 0);
                                       wanted.owner_instance = 1;
                                       wanted.writer_instance = 2;
                                       wanted.writer_incarnation = 22;
                                       wanted.writer_host = 1;
                                       const auto block = host.table->take(1, wanted);
                                       if (!block) memory.fault("no block");
                                       OfferLine offer;
                                       offer.key = 5;
                                       offer.peer_instance = 2;
                                       offer.peer_host = 1;
                                       offer.offset = geometry.block(0, *block);
                                       offer.lines = geometry.ring_lines();
                                       host.directory->offer(0, offer);
                                       for (uint64_t i = 0; i < patience; ++i) memory.pause();
                                       host.directory->withdraw(0);
                                       for (int i = 0; i < 2 && !is_free; ++i) {
                                         const auto line = host.table->find(*block);
                                         if (line && is_unused(*host.directory, *block, *line)) {
                                           host.table->free(*block, 1);
                                           is_free = true;
                                         }
                                       }
                                     },
                                     [&] {
                                       // The writer: accepts the offer and writes a while.
                                       Host host(memory, geometry, 1);
                                       host.boot(22);
                                       host.join(2, 22, description_of(2));
                                       const ProcessId peer{0, 0, 1};
                                       std::optional<Directory<ModelPolicy>::Offer> offer;
                                       for (int i = 0; i < 200 && !offer; ++i) offer = host.directory->offer_of(peer);
                                       if (!offer) return;
                                       for (uint64_t i = 0; i < hesitation; ++i) memory.pause();
                                       if (!host.directory->accept(0, peer, *offer)) return;
                                       Line* const inbox = host.directory->at(offer->line.offset);
                                       for (uint64_t i = 0; i < writes_for; ++i) {
                                         if (is_free) memory.fault("a free inbox is written");
                                         put_word(host.policy, inbox + 1, i + 1);
                                       }
                                       if (is_free) memory.fault("a free inbox was written");
                                       host.directory->stop_writing(0);
                                     }},
                                    kLimit);
    ASSERT_TRUE(is_done) << "seed " << seed << ": " << (memory.fault().empty() ? "no progress" : memory.fault());
    ++(is_free ? freed : kept);
  }
  EXPECT_GT(freed, 0u);
  EXPECT_GT(kept, 0u) << "no run closed the channel while the other host wrote";
}

TEST(ModelPoolDirectory, ProcessKilledAtAnyInstruction_LeavesNoStoreInTheCachesAfterItsRecordHasEnded) {
  // The writer is killed: its stores can still be in the caches of its host. The next process of that host ends its
  // record. Then the owner gives the block away, and no old store may arrive in it.
  for (uint64_t seed = 1; seed <= 4 * seeds(); ++seed) {
    const Geometry geometry(header_of(2));
    IncoherentMemory memory(seed, static_cast<uint32_t>(lines_of(geometry.bytes())), 2, seed % 4 != 0);
    constexpr uint64_t kOld = 77, kNew = 88;
    // Up to the end of the join, or some instructions behind the acceptance of the offer.
    const uint64_t join_left = memory.below(3) == 0 ? memory.below(900) : KillableCpu::kNever;
    const uint64_t write_left = memory.below(40);
    const bool is_done = memory.run({[&] {
                                       Host host(memory, geometry, 0);
                                       host.boot(11);
                                       host.join(1, 11, description_of(1));
                                       while (host.directory->life({1, 0, 2}) == Life::kEnded) memory.pause();
                                       BlockLine wanted;
                                       wanted.word = block_word(BlockKind::kInbox, 0, 0);
                                       wanted.owner_instance = 1;
                                       wanted.writer_instance = 2;
                                       wanted.writer_incarnation = 22;
                                       wanted.writer_host = 1;
                                       const auto block = host.table->take(1, wanted);
                                       OfferLine offer;
                                       offer.key = 5;
                                       offer.peer_instance = 2;
                                       offer.peer_host = 1;
                                       offer.offset = geometry.block(0, *block);
                                       offer.lines = geometry.ring_lines();
                                       host.directory->offer(0, offer);
                                       while (host.directory->life({1, 0, 2}) != Life::kEnded) memory.pause();
                                       host.directory->withdraw(0);
                                       const auto line = host.table->find(*block);
                                       if (!line || !is_unused(*host.directory, *block, *line))
                                         memory.fault("the inbox of an ended process stays");
                                       // The block has another use now.
                                       Line* const inbox = host.directory->at(offer.offset);
                                       for (int i = 0; i < 4; ++i) put_word(host.policy, inbox + i, kNew);
                                       memory.evict_all(1);
                                       for (int i = 0; i < 4; ++i)
                                         if (host.policy.poll(inbox + i) != kNew)
                                           memory.fault("an old store arrived in a block that was given away");
                                     },
                                     [&] {
                                       Host(memory, geometry, 1).boot(22);
                                       // A process that is killed while it joins, and one that is killed while it
                                       // writes.
                                       for (const bool dies_early : {true, false}) {
                                         Host host(memory, geometry, 1, true);
                                         try {
                                           KillableCpu::left = dies_early ? join_left : KillableCpu::kNever;
                                           if (dies_early && join_left == KillableCpu::kNever) continue;
                                           host.join(dies_early ? 3 : 2, 22, description_of(2));
                                           if (dies_early) continue;
                                           const ProcessId peer{0, 0, 1};
                                           std::optional<Directory<ModelPolicy>::Offer> offer;
                                           while (!offer) offer = host.directory->offer_of(peer);
                                           KillableCpu::left = write_left;
                                           if (!host.directory->accept(0, peer, *offer)) continue;
                                           Line* const inbox = host.directory->at(offer->line.offset);
                                           for (;;)
                                             for (int i = 0; i < 4; ++i) put_word(host.policy, inbox + i, kOld);
                                         } catch (const Killed&) {
                                         }
                                         KillableCpu::left = KillableCpu::kNever;
                                         Host(memory, geometry, 1).directory->end_process(0);
                                       }
                                     }},
                                    kLimit);
    ASSERT_TRUE(is_done) << "seed " << seed << ": " << (memory.fault().empty() ? "no progress" : memory.fault());
  }
}

TEST(ModelPoolDirectory, BlockTable_UserKilledAtAnyInstruction_IsWholeForTheNextProcess) {
  for (uint64_t seed = 1; seed <= 4 * seeds(); ++seed) {
    HeaderLine header = header_of(1);
    header.bytes += 2 * kTerritoryAlignment;
    const Geometry geometry(header);
    IncoherentMemory memory(seed, static_cast<uint32_t>(lines_of(geometry.bytes())), 1, seed % 4 != 0);
    KillableCpu::left = memory.below(1500);
    // The blocks that the process holds for sure, and one that it was taking or freeing when it was stopped.
    std::vector<std::pair<uint32_t, uint32_t>> held;
    memory.run({[&] {
                 Host host(memory, geometry, 0, true);
                 BlockLine wanted;
                 wanted.word = block_word(BlockKind::kProgram, 0, 1);
                 wanted.owner_instance = 9;
                 try {
                   for (;;) {
                     if (held.size() < 4 && memory.below(3) != 0) {
                       const auto count = static_cast<uint32_t>(1 + memory.below(3));
                       if (const auto taken = host.table->take(count, wanted)) held.emplace_back(*taken, count);
                     } else if (!held.empty()) {
                       const size_t at = memory.below(held.size());
                       const auto [block, count] = held[at];
                       held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
                       host.table->free(block, count);
                     }
                   }
                 } catch (const Killed&) {
                 }
                 Host next(memory, geometry, 0);
                 std::set<uint32_t> used;
                 uint32_t all = 0;
                 const bool is_whole = next.table->each([&](uint32_t at, uint32_t count, const BlockLine& line) {
                   all += count;
                   if (block_kind(line.word) == BlockKind::kFree) return true;
                   if (line.owner_instance != 9) memory.fault("an owner that never was");
                   for (uint32_t i = at; i < at + count; ++i) used.insert(i);
                   return true;
                 });
                 if (!is_whole || all != geometry.blocks()) memory.fault("the table is not whole");
                 for (const auto& [block, count] : held)
                   for (uint32_t i = block; i < block + count; ++i)
                     if (used.count(i) == 0) memory.fault("a held block is free");
               }},
               kLimit);
    ASSERT_EQ(memory.fault(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace nupa::pool
