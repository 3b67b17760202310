// SPDX-License-Identifier: Apache-2.0
/// Processes that are killed, hosts that start again, and two machines with one number.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include "fixture.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/medium_policy.h"

namespace nupa::pool {
namespace {

/// Runs `body` in a child, which ends without a goodbye.
void in_killed_process(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the child failed";
}

class PoolDeaths : public ::testing::TestWithParam<Coherence> {
 protected:
  /// A process of this host has joined, and has opened a channel to `peer` and allocated memory, and was killed.
  void kill_a_process_of(uint16_t host, const std::function<void(Process&)>& work = {}) {
    in_killed_process([&] {
      auto* const process = new Process(file_, host, clock_, GetParam());
      process->join(9, 9);
      if (work) work(*process);
    });
  }
  BlockCounts blocks_of(uint16_t host) {
    const auto memory = PoolMemory::open(file_.spec(0, GetParam()));
    const auto status = look_at_pool(**memory, 0);
    EXPECT_TRUE(status);
    EXPECT_FALSE(status->hosts[host].blocks.is_damaged);
    return status->hosts[host].blocks;
  }
  PoolFile file_;
  TestClock clock_;
};

TEST_P(PoolDeaths, KilledProcess_IsEndedByTheNextOneOfItsHost) {
  Process other(file_, 1, clock_, GetParam());
  other.join(8, 2);
  kill_a_process_of(0);
  const auto dead = other->find(gid_of(9), 9);
  ASSERT_TRUE(dead) << "its record is there";
  EXPECT_EQ(other->life(*dead), Life::kAlive);
  Process next(file_, 0, clock_, GetParam());
  next.join(7, 1);
  EXPECT_EQ(other->life(*dead), Life::kEnded);
  EXPECT_EQ(other->find(gid_of(9), 9), std::nullopt);
  EXPECT_EQ(next.id().record, dead->record) << "the record is used again";
}

TEST_P(PoolDeaths, KilledProcess_IsEndedByAnotherOneThatLives) {
  Process lives(file_, 0, clock_, GetParam());
  lives.join(7, 1);
  kill_a_process_of(0);
  const auto dead = lives->find(gid_of(9), 9);
  ASSERT_TRUE(dead);
  pass(clock_, 1'200'000'000, lives);
  EXPECT_EQ(lives->life(*dead), Life::kEnded);
}

TEST_P(PoolDeaths, KilledProcess_MemoryIsFree) {
  const uint64_t before = blocks_of(0).free;
  kill_a_process_of(0, [](Process& process) { EXPECT_TRUE(process->allocate(100'000)); });
  EXPECT_LT(blocks_of(0).free, before);
  Process next(file_, 0, clock_, GetParam());
  next.join(7, 1);
  EXPECT_EQ(blocks_of(0).free, before);
}

TEST_P(PoolDeaths, KilledOwner_MemoryStaysUntilItIsNotBorrowed) {
  Process borrower(file_, 0, clock_, GetParam());
  borrower.join(7, 1);
  auto* const offset = static_cast<uint64_t*>(
      mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(offset, MAP_FAILED);
  kill_a_process_of(0, [&](Process& process) { *offset = process->allocate(100'000)->offset; });
  const auto dead = borrower->find(gid_of(9), 9);
  ASSERT_TRUE(dead);
  auto borrowed = borrower->borrow(dead->instance, *offset, 100'000);
  ASSERT_NE(borrowed, nullptr);
  munmap(offset, sizeof(uint64_t));
  Process next(file_, 0, clock_, GetParam());
  next.join(8, 2);
  EXPECT_EQ(borrower->life(*dead), Life::kEnded);
  EXPECT_GT(blocks_of(0).quarantined, 0u);
  borrowed.reset();
  pass(clock_, 2'000'000'000, next);
  EXPECT_EQ(blocks_of(0).quarantined, 0u);
}

TEST_P(PoolDeaths, KilledOwner_InboxStaysUntilTheWriterHasClosed) {
  Process other(file_, 1, clock_, GetParam());
  other.join(8, 2);
  // The other host answers the offer after the death, as if it had not noticed it.
  kill_a_process_of(0, [&](Process& process) {
    auto* const channel = new auto(std::move(*process->open_channel(other.id())));
    EXPECT_NE(*channel, nullptr);
  });
  const auto dead = other->find(gid_of(9), 9);
  ASSERT_TRUE(dead);
  auto channel = std::move(*other->open_channel(*dead));
  ASSERT_TRUE(channel->is_open());
  Process next(file_, 0, clock_, GetParam());
  next.join(7, 1);
  EXPECT_EQ(other->life(*dead), Life::kEnded);
  EXPECT_GT(blocks_of(0).quarantined, 0u) << "the other host writes to it";
  channel->publish({});
  pass(clock_, 2'000'000'000, next, other);
  EXPECT_GT(blocks_of(0).quarantined, 0u);
  other->close_channel(std::move(channel));
  pass(clock_, 2'000'000'000, next, other);
  EXPECT_EQ(blocks_of(0).quarantined, 0u);
  EXPECT_EQ(blocks_of(0).free, blocks_of(0).total);
  EXPECT_EQ(blocks_of(1).free, blocks_of(1).total);
}

TEST_P(PoolDeaths, KilledOwner_MemoryStaysUntilItsPeersHaveClosed) {
  Process other(file_, 1, clock_, GetParam());
  Process apart(file_, 1, clock_, GetParam());
  other.join(8, 2);
  apart.join(6, 6);
  kill_a_process_of(0, [&](Process& process) {
    EXPECT_TRUE(process->allocate(100'000));
    auto* const channel = new auto(std::move(*process->open_channel(other.id())));
    EXPECT_NE(*channel, nullptr);
  });
  const auto dead = other->find(gid_of(9), 9);
  ASSERT_TRUE(dead);
  // The peer may have been granted the memory, and does not notice the death.
  auto channel = std::move(*other->open_channel(*dead));
  ASSERT_TRUE(channel->is_open());
  const uint64_t taken = blocks_of(0).program;
  EXPECT_GT(taken, 0u);
  Process next(file_, 0, clock_, GetParam());
  next.join(7, 1);
  // A channel of the next process, also if it has the same record, keeps nothing of the former one.
  auto to_next = std::move(*apart->open_channel(next.id()));
  auto to_apart = std::move(*next->open_channel(apart.id()));
  ASSERT_TRUE(to_next->is_open());
  pass(clock_, 2'000'000'000, next, other, apart);
  EXPECT_GE(blocks_of(0).quarantined, taken);
  EXPECT_EQ(blocks_of(0).program, 0u);
  other->close_channel(std::move(channel));
  pass(clock_, 2'000'000'000, next, other, apart);
  EXPECT_EQ(blocks_of(0).quarantined, 0u);
  apart->close_channel(std::move(to_next));
  next->close_channel(std::move(to_apart));
}

TEST_P(PoolDeaths, KilledOwner_MemoryIsFreeWhenThePeerHasSaidGoodbye) {
  Process other(file_, 1, clock_, GetParam());
  other.join(8, 2);
  kill_a_process_of(0, [&](Process& process) {
    EXPECT_TRUE(process->allocate(100'000));
    auto* const channel = new auto(std::move(*process->open_channel(other.id())));
    EXPECT_NE(*channel, nullptr);
  });
  const auto dead = other->find(gid_of(9), 9);
  ASSERT_TRUE(dead);
  auto channel = std::move(*other->open_channel(*dead));
  ASSERT_TRUE(channel->is_open());
  Process next(file_, 0, clock_, GetParam());
  next.join(7, 1);
  EXPECT_GT(blocks_of(0).quarantined, 0u);
  other->leave();
  pass(clock_, 2'000'000'000, next);
  EXPECT_EQ(blocks_of(0).quarantined, 0u);
  EXPECT_EQ(blocks_of(0).free, blocks_of(0).total);
}

TEST_P(PoolDeaths, KilledOwnerAndPeer_MemoryIsFreeWhenThePeersHostHasEndedIt) {
  Process next(file_, 0, clock_, GetParam());
  next.join(7, 1);
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  char word = 0;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // An owner of host 0 and a peer of host 1, which are both killed with their channel open.
    auto* const owner = new Process(file_, 0, clock_, GetParam());
    auto* const peer = new Process(file_, 1, clock_, GetParam());
    owner->join(9, 9);
    peer->join(8, 8);
    auto* const one = new auto(std::move(*(*owner)->open_channel(peer->id())));
    auto* const two = new auto(std::move(*(*peer)->open_channel(owner->id())));
    const bool fine = (*one)->is_open() && (*two)->is_open() && (*owner)->allocate(100'000).has_value();
    (void)!write(to_parent[1], "", 1);
    (void)!read(to_child[0], &word, 1);
    _exit(fine ? 0 : 1);
  }
  ASSERT_EQ(read(to_parent[0], &word, 1), 1);
  ASSERT_EQ(write(to_child[1], "", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
  pass(clock_, 3'000'000'000, next);
  EXPECT_GT(blocks_of(0).quarantined, 0u) << "nobody has ended the peer";
  Process of_peers_host(file_, 1, clock_, GetParam());
  of_peers_host.join(5, 5);
  pass(clock_, 3'000'000'000, next, of_peers_host);
  EXPECT_EQ(blocks_of(0).quarantined, 0u);
  EXPECT_EQ(blocks_of(0).free, blocks_of(0).total);
}

TEST_P(PoolDeaths, KilledWriter_InboxStaysUntilItsHostHasEndedIt) {
  Process owner(file_, 1, clock_, GetParam());
  owner.join(8, 2);
  std::unique_ptr<Channel> channel;
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  char word = 0;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto* const process = new Process(file_, 0, clock_, GetParam());
    process->join(9, 9);
    (void)!write(to_parent[1], "", 1);
    (void)!read(to_child[0], &word, 1);
    Pool::News news;
    (*process)->poll_bells(&news);
    auto* const opened = new auto(std::move(*(*process)->open_channel(owner.id())));
    (*opened)->publish({});
    _exit((*opened)->is_open() ? 0 : 1);
  }
  ASSERT_EQ(read(to_parent[0], &word, 1), 1);
  const auto writer = owner->find(gid_of(9), 9);
  ASSERT_TRUE(writer);
  channel = std::move(*owner->open_channel(*writer));
  ASSERT_EQ(write(to_child[1], "", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
  owner->close_channel(std::move(channel));
  pass(clock_, 3'000'000'000, owner);
  EXPECT_GT(blocks_of(1).quarantined, 0u) << "stores of the writer can be in the caches of its host";
  Process next(file_, 0, clock_, GetParam());
  next.join(7, 1);
  pass(clock_, 2'000'000'000, owner);
  EXPECT_EQ(blocks_of(1).quarantined, 0u);
  EXPECT_EQ(blocks_of(1).free, blocks_of(1).total);
}

TEST_P(PoolDeaths, Fork_ChildOfAProcess_WritesNothing) {
  Process one(file_, 0, clock_, GetParam());
  Process other(file_, 1, clock_, GetParam());
  one.join(7, 1);
  other.join(8, 2);
  const auto block = one->allocate(4096);
  ASSERT_TRUE(block);
  std::memset(block->at, 5, 4096);
  one->write_back(block->at, 4096);
  in_killed_process([&] {
    std::memset(block->at, 6, 4096);
    one->leave();
    EXPECT_FALSE(one->allocate(4096));
    EXPECT_FALSE(one->open_channel(other.id()));
    one.beat();
  });
  EXPECT_EQ(other->life(one.id()), Life::kAlive);
  std::byte loaded[4096];
  ASSERT_TRUE(other->load(*one->place_of(block->at, 4096), loaded));
  EXPECT_EQ(loaded[0], std::byte{5});
}

INSTANTIATE_TEST_SUITE_P(Pool, PoolDeaths, ::testing::Values(Coherence::kFull, Coherence::kNone),
                         [](const auto& one) { return one.param == Coherence::kFull ? "Coherent" : "Torn"; });

/// The tables of a pool, to be written as another machine would.
class Tables {
 public:
  explicit Tables(const PoolFile& file, uint16_t host)
      : memory_(std::move(*PoolMemory::open(file.spec(host)))),
        geometry_(*read_geometry(*memory_)),
        directory_(Coherent(), memory_->lines(), geometry_, host) {}
  /// Another boot of the host has one process.
  void boot_elsewhere() {
    HostLine host;
    host.incarnation = 77;
    host.boot_id.fill(9);
    host.file_device = memory_->file_device();
    host.file_inode = memory_->file_inode();
    directory_.take_host(host);
    ProcessLine process;
    process.instance = 99;
    process.incarnation = 77;
    directory_.begin_process(0, process, {}, 1);
  }
  Directory<Coherent>* operator->() { return &directory_; }
  const Geometry& geometry() const { return geometry_; }

 private:
  std::unique_ptr<PoolMemory> memory_;
  Geometry geometry_;
  Directory<Coherent> directory_;
};

TEST(PoolBoots, NumberOfAHostThatLives_IsRefusedByItsOtherBoot) {
  PoolFile file;
  Tables tables(file, 0);
  tables.boot_elsewhere();
  int64_t now_ns = 1'000'000'000, beat = 5;
  auto pool = make_pool(file.spec(0), {[&] { return now_ns; },
                                       [&](int64_t ns) {
                                         now_ns += ns;
                                         if (now_ns > 2'000'000'000) tables->beat(++beat);
                                       }});
  ASSERT_TRUE(pool);
  const auto joined = (*pool)->join({});
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), EADDRINUSE);
  EXPECT_NE(std::string(joined.error().what()).find("in use by another machine"), std::string::npos);
  EXPECT_EQ(tables->instance_of(0, 0), 99u) << "its record is untouched";
}

TEST(PoolBoots, NumberOfAHostThatIsSilent_IsTakenAndItsProcessesHaveEnded) {
  PoolFile file;
  TestClock clock;
  Tables tables(file, 0);
  tables.boot_elsewhere();
  Process other(file, 1, clock);
  other.join(8, 2);
  const auto former = other->find_record(0, 0);
  ASSERT_TRUE(former);
  const int64_t before = clock.now_ns;
  Process next(file, 0, clock);
  next.join(7, 1);
  EXPECT_GE(clock.now_ns - before, 2'000'000'000) << "it watched for too short a time";
  EXPECT_EQ(other->life(*former), Life::kEnded);
  EXPECT_EQ(other->find(gid_of(1), 7), next.id());
}

TEST(PoolBoots, NumberOfAHostWhoseProcessesHaveLeft_IsTakenAtOnce) {
  PoolFile file;
  TestClock clock;
  Tables tables(file, 0);
  tables.boot_elsewhere();
  tables->end_process(0);
  const int64_t before = clock.now_ns;
  Process next(file, 0, clock);
  next.join(7, 1);
  EXPECT_EQ(clock.now_ns, before);
}

TEST(PoolBoots, ProcessWhoseNumberWasTaken_WritesNoMore) {
  PoolFile file;
  TestClock clock;
  Process one(file, 0, clock);
  Process other(file, 1, clock);
  one.join(7, 1);
  other.join(8, 2);
  auto channel = std::move(*one->open_channel(other.id()));
  auto back = std::move(*other->open_channel(one.id()));
  ASSERT_TRUE(channel->is_open());
  Tables(file, 0).boot_elsewhere();
  clock.now_ns += 100'000'000;
  one.beat();
  EXPECT_FALSE(channel->is_open());
  EXPECT_FALSE(one->allocate(4096));
  EXPECT_EQ(one->life(other.id()), Life::kEnded);
  channel->publish({});
  Header header;
  EXPECT_EQ(back->look(&header), Channel::Look::kNothing);
}

TEST(PoolBoots, RecordOfAProcessThatOpenedAnotherFile_IsNotTaken) {
  PoolFile file;
  TestClock clock;
  {
    Process one(file, 0, clock);
    one.join(7, 1);
    one->leave();
  }
  Tables tables(file, 0);
  HostLine host = *tables->host_line(0);
  host.file_inode += 1;
  tables->take_host(host);
  ProcessLine process;
  process.instance = 99;
  process.incarnation = host.incarnation;
  tables->begin_process(0, process, {}, 1);
  auto pool = make_pool(file.spec(0), clock.clock());
  const auto joined = (*pool)->join({});
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), EADDRINUSE);
  EXPECT_NE(std::string(joined.error().what()).find("opened the pool by another file"), std::string::npos);
  // `nupa pool clean` ends it after its silence.
  const auto memory = PoolMemory::open(file.spec(0));
  const auto cleaned = clean_pool(**memory, clock.clock());
  ASSERT_TRUE(cleaned) << cleaned.error().what();
  EXPECT_EQ(cleaned->processes.size(), 1u);
  EXPECT_TRUE((*pool)->join({}));
}

TEST(PoolBoots, AllRecordsInUse_JoinFails) {
  PoolFile file;
  TestClock clock;
  std::vector<std::unique_ptr<Process>> processes;
  const uint16_t records = Tables(file, 0).geometry().records();
  for (uint16_t i = 0; i < records; ++i) {
    processes.push_back(std::make_unique<Process>(file, 0, clock));
    EXPECT_EQ(processes.back()->join(i + 1u).record, i);
  }
  Process more(file, 0, clock);
  const auto joined = more->join({});
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ENOSPC);
  processes.pop_back();
  EXPECT_TRUE(more->join({})) << "the record of a process that has left is free";
}

TEST(PoolFormat, PoolInUse_IsRefusedWithoutForce) {
  PoolFile file;
  TestClock clock;
  Process one(file, 0, clock);
  one.join(7, 1);
  FormatOptions options;
  auto formatted = format_pool(file.spec(0), options, clock.clock());
  ASSERT_FALSE(formatted);
  EXPECT_EQ(formatted.error().code(), EBUSY);
  options.force = true;
  formatted = format_pool(file.spec(0), options, clock.clock());
  EXPECT_TRUE(formatted) << formatted.error().what();
}

TEST(PoolFormat, RecordsOfDeadProcesses_AreNoObstacle) {
  PoolFile file;
  TestClock clock;
  Tables(file, 1).boot_elsewhere();
  EXPECT_TRUE(format_pool(file.spec(0), {}, clock.clock()));
  Process one(file, 1, clock);
  const int64_t before = clock.now_ns;
  one.join(7, 1);
  EXPECT_EQ(clock.now_ns, before) << "the earlier boot is forgotten";
}

TEST(PoolFormat, EachSize_GivesAPoolThatAProcessCanUse) {
  TestClock clock;
  for (const uint64_t size : {1 * kMiB, 3 * kMiB + 4096, 64 * kMiB})
    for (const uint16_t hosts : {1, 2, 3}) {
      PoolFile file(size, hosts);
      Process one(file, static_cast<uint16_t>(hosts - 1), clock);
      one.join(7, 1);
      EXPECT_TRUE(one->allocate(4096)) << size << " bytes, " << hosts << " hosts";
    }
}

TEST(PoolFile, ShorterWhileInUse_EndsThePoolAndNotTheProcess) {
  PoolFile file;
  TestClock clock;
  Process one(file, 0, clock);
  Process other(file, 1, clock);
  one.join(7, 1);
  other.join(8, 2);
  auto channel = std::move(*one->open_channel(other.id()));
  ASSERT_EQ(truncate(file.path().c_str(), 4096), 0);
  one.beat();
  clock.now_ns += 100'000'000;
  one.beat();
  EXPECT_FALSE(channel->is_open());
  EXPECT_EQ(one->life(other.id()), Life::kEnded);
  EXPECT_FALSE(one->allocate(4096));
  EXPECT_EQ(one->find(gid_of(2), 8), std::nullopt);
  one->close_channel(std::move(channel));
}

TEST(PoolFile, WrongMedia_AreNamed) {
  const auto error_of = [](const std::string& name, const char* content, uint16_t host = 0) {
    Spec spec;
    spec.name = "/dev/shm/nupa-pool-test-wrong";
    if (content != nullptr) {
      FILE* const file = std::fopen(spec.name.c_str(), "w");
      std::fwrite(content, 1, std::strlen(content), file);
      std::fclose(file);
      EXPECT_EQ(truncate(spec.name.c_str(), static_cast<off_t>(std::strlen(content) == 0 ? 0 : 1 << 20)), 0);
    } else {
      spec.name = name;
    }
    spec.host = host;
    const auto pool = make_pool(spec);
    unlink("/dev/shm/nupa-pool-test-wrong");
    return pool ? "opened" : std::string(pool.error().what());
  };
  EXPECT_EQ(error_of("/dev/shm/nupa-no-such", nullptr),
            "cannot open the pool file /dev/shm/nupa-no-such (nupa pool format --size makes it): No such file or "
            "directory");
  EXPECT_EQ(error_of("/dev/null", nullptr), "the pool file /dev/null is not a regular file");
  EXPECT_EQ(error_of("", ""),
            "/dev/shm/nupa-pool-test-wrong is too small for a pool (nupa pool format --size makes a file larger)");
  EXPECT_EQ(error_of("", "something"),
            "file:/dev/shm/nupa-pool-test-wrong: holds no pool (nupa pool format makes one)");
  PoolFile file;
  Spec spec = file.spec(2);
  const auto pool = make_pool(spec);
  ASSERT_FALSE(pool);
  EXPECT_NE(std::string(pool.error().what()).find("host=2: the pool was formatted for hosts 0 to 1"),
            std::string::npos);
  spec.kind = MediumKind::kPci;
  spec.name = "ffff:ff:1f.7";
  EXPECT_EQ(std::string(make_pool(spec).error().what()),
            "no PCI function ffff:ff:1f.7 on this machine (lspci -D lists them)");
  spec.kind = MediumKind::kDax;
  spec.name = "/dev/null";
  EXPECT_EQ(make_pool(spec).error().code(), EINVAL);
}

}  // namespace
}  // namespace nupa::pool
