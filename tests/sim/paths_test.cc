// SPDX-License-Identifier: Apache-2.0
// Several paths between two ends: the goodput that they have together, and paths that fail.
#include <gtest/gtest.h>

#include "roce_world.h"

namespace nupa::roce::testing {
namespace {

constexpr uint64_t kFastRate = 1'500'000'000;  // bytes a second
constexpr uint64_t kSlowRate = 500'000'000;
constexpr uint32_t kMessage = 1 << 20;
constexpr uint32_t kMtu = 4096;
constexpr int64_t kMillisecond = 1'000'000;

sim::LinkOptions link_of(uint64_t rate, int64_t delay_ns) {
  sim::LinkOptions link;
  link.rate = rate;
  link.delay_ns = delay_ns;
  link.queue_bytes = 1 << 20;
  return link;
}

/// Keeps requests of 1 MiB posted.
class Stream {
 public:
  Stream(Opcode opcode, std::string_view congestion, std::vector<sim::LinkOptions> more, bool slow_first = false)
      : opcode_(opcode), world_(options(congestion, std::move(more), slow_first), 1) {
    for (size_t i = 0; i < world_.a.host.memory.size(); ++i)
      source().memory[i] = static_cast<std::byte>(i * 7 + i / kMtu);
    world_.a.host.on_done = [this] { bytes_ += world_.a.host.done.back().length; };
  }
  World& world() { return world_; }
  SimHost& source() { return opcode_ == Opcode::kRdmaRead ? world_.b.host : world_.a.host; }
  SimHost& sink() { return opcode_ == Opcode::kRdmaRead ? world_.a.host : world_.b.host; }
  /// Bytes of requests that completed until `for_ns` later.
  uint64_t run(int64_t for_ns) {
    const uint64_t before = bytes_;
    const int64_t until = world_.now + for_ns;
    while (world_.now < until) {
      post();
      if (!world_.step()) break;
    }
    return bytes_ - before;
  }
  /// Until all that was posted is done.
  bool finish() {
    return world_.run([this] { return world_.a.connection.requester().idle(); });
  }
  void expect_no_error() const {
    for (const SimHost::Done& done : world_.a.host.done) ASSERT_EQ(WcStatus::kSuccess, done.status);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  static World::Options options(std::string_view congestion, std::vector<sim::LinkOptions> more, bool slow_first) {
    World::Options options;
    options.mtu = kMtu;
    options.memory = 2 * kMessage;
    options.congestion = congestion;
    options.link = slow_first ? link_of(kSlowRate, 20'000) : link_of(kFastRate, 20'000);
    options.more_paths = std::move(more);
    options.max_wr = 16;
    options.receive_window = 1 << 20;
    options.limits = {.timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    options.max_rd_atomic = 16;
    return options;
  }
  void post() {
    while (posted_ - world_.a.host.done.size() < 8) {
      SendWr wr;
      wr.wr_id = posted_++;
      wr.opcode = opcode_;
      wr.rkey = kKey;
      wr.remote_addr = SimHost::kBase + (wr.wr_id % 2) * kMessage;
      const Sge sge{wr.remote_addr, kMessage, kKey};
      wr.sg_list = &sge;
      wr.num_sge = 1;
      world_.a.connection.requester().post(wr, static_cast<uint32_t>(posted_));
      world_.a.transmit(world_.now);
    }
  }

  Opcode opcode_;
  World world_;
  uint64_t posted_ = 0;
  uint64_t bytes_ = 0;
};

struct Case {
  const char* name;
  Opcode opcode;
  std::string_view congestion;
  bool slow_first;
};

class RocePaths : public ::testing::TestWithParam<Case> {
 protected:
  std::vector<sim::LinkOptions> other() const {
    return {GetParam().slow_first ? link_of(kFastRate, 20'000) : link_of(kSlowRate, 20'000)};
  }
};

TEST_P(RocePaths, TwoPathsOfUnequalRate_CarryTheirSum) {
  Stream stream(GetParam().opcode, GetParam().congestion, other(), GetParam().slow_first);
  stream.run(10 * kMillisecond);
  constexpr int64_t kTime = 30 * kMillisecond;
  const double goodput = static_cast<double>(stream.run(kTime)) / kTime * 1e9;
  const double share = goodput / static_cast<double>(kFastRate + kSlowRate);
  std::printf("%s: %.0f MB/s, %.3f of the sum\n", GetParam().name, goodput / 1e6, share);
  EXPECT_GT(share, 0.9);
  EXPECT_TRUE(stream.finish());
  stream.expect_no_error();
  EXPECT_EQ(stream.source().memory, stream.sink().memory);
}

TEST_P(RocePaths, OnePathFailsAndRecovers_TrafficGoesOn) {
  for (const uint32_t which : {0u, 1u}) {
    Stream stream(GetParam().opcode, GetParam().congestion, other(), GetParam().slow_first);
    World& world = stream.world();
    stream.run(10 * kMillisecond);
    sim::LinkOptions cut = link_of(0, 1000);
    cut.faults.loss = 1;
    world.change_path(which, cut);
    const int64_t at = world.now;
    const Path& path = world.a.connection.requester().paths()[which];
    while (path.health == Path::Health::kAlive && world.now < at + 100 * kMillisecond) stream.run(10'000);
    EXPECT_EQ(Path::Health::kDead, path.health);
    const int64_t left = world.now - at;
    stream.run(10 * kMillisecond);
    constexpr int64_t kTime = 20 * kMillisecond;
    const bool fast_is_left = (which == 0) == GetParam().slow_first;
    const double share = static_cast<double>(stream.run(kTime)) / kTime * 1e9 /
                         static_cast<double>(fast_is_left ? kFastRate : kSlowRate);
    world.change_path(which, which == 0 ? link_of(GetParam().slow_first ? kSlowRate : kFastRate, 20'000) : other()[0]);
    const int64_t mended = world.now;
    while (path.health != Path::Health::kAlive && world.now < mended + 5000 * kMillisecond) stream.run(10'000);
    std::printf("%s, path %u: left after %.0f us (%.1f round trips), then %.3f of what remains; back after %.1f ms\n",
                GetParam().name, which, static_cast<double>(left) / 1e3,
                static_cast<double>(left) / static_cast<double>(path.round_trip.smoothed()), share,
                static_cast<double>(world.now - mended) / 1e6);
    EXPECT_EQ(Path::Health::kAlive, path.health);
    EXPECT_GT(share, 0.9);
    EXPECT_TRUE(stream.finish());
    stream.expect_no_error();
    EXPECT_EQ(stream.source().memory, stream.sink().memory);
  }
}

TEST_P(RocePaths, LossOnOnePath_KeepsThePath) {
  std::vector<sim::LinkOptions> more = other();
  more[0].faults.loss = 0.01;
  Stream stream(GetParam().opcode, GetParam().congestion, more, GetParam().slow_first);
  int alive = 0;
  for (int i = 0; i < 40; ++i) {
    stream.run(kMillisecond);
    alive += stream.world().a.connection.requester().paths()[1].health == Path::Health::kAlive;
  }
  EXPECT_GT(alive, 35);
  EXPECT_TRUE(stream.finish());
  stream.expect_no_error();
  EXPECT_EQ(stream.source().memory, stream.sink().memory);
}

INSTANTIATE_TEST_SUITE_P(All, RocePaths,
                         ::testing::Values(Case{"write_tolerant", Opcode::kRdmaWrite, "tolerant", false},
                                           Case{"write_none", Opcode::kRdmaWrite, "none", false},
                                           Case{"write_swift", Opcode::kRdmaWrite, "swift", false},
                                           Case{"write_cubic", Opcode::kRdmaWrite, "cubic", false},
                                           Case{"write_swift_slow_first", Opcode::kRdmaWrite, "swift", true},
                                           Case{"read_tolerant", Opcode::kRdmaRead, "tolerant", false},
                                           Case{"read_none", Opcode::kRdmaRead, "none", false},
                                           Case{"read_swift", Opcode::kRdmaRead, "swift", false}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace nupa::roce::testing
