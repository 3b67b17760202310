// SPDX-License-Identifier: Apache-2.0
// Random requests over a random link, both ways at once, by seed: exactly once, in order, memory equal, or the
// specified error. NUPA_SIM_RUNS and NUPA_SIM_SEED choose how many and from where; a seed that fails is named and
// replays alone.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "roce_world.h"

namespace nupa::roce::testing {
namespace {

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

/// What one end sends, and what must come of it.
class Sender {
 public:
  // The other end's memory: constants to be read, words for atomics, room for writes; and receives. This end's memory:
  // sources, and room for what is read.
  static constexpr uint64_t kConstants = SimHost::kBase;
  static constexpr uint64_t kConstantBytes = 128 << 10;
  static constexpr uint64_t kWords = kConstants + kConstantBytes;
  static constexpr uint64_t kWordCount = 8;
  static constexpr uint64_t kWrites = kWords + kWordCount * 8;
  static constexpr uint64_t kWriteBytes = 640 << 10;
  static constexpr uint64_t kReceives = kWrites + kWriteBytes;
  static constexpr uint64_t kLeastRequests = 10;
  static constexpr uint64_t kMostRequests = 59;
  static constexpr uint64_t kReceiveEach = 24 << 10;  ///< any message of this test fits
  static constexpr uint64_t kReceiveBytes = kMostRequests * kReceiveEach;
  static constexpr uint64_t kSources = kReceives + kReceiveBytes;
  static constexpr uint64_t kSourceBytes = 768 << 10;
  static constexpr uint64_t kResults = kSources + kSourceBytes;
  static constexpr uint64_t kResultBytes = 512 << 10;
  static constexpr size_t kMemory = kResults + kResultBytes - SimHost::kBase;

  Sender(End& from, End& to, Service service, uint32_t mtu, uint64_t seed)
      : from_(from), to_(to), service_(service), mtu_(mtu), random_(seed) {
    fill(to.host.at(kConstants, kConstantBytes), kConstantBytes);
    fill(from.host.at(kSources, kSourceBytes), kSourceBytes);
    std::memset(to.host.at(kWords, kWordCount * 8), 0, kWordCount * 8);
    shadow_.assign(to.host.memory.begin() + static_cast<ptrdiff_t>(kWrites - SimHost::kBase),
                   to.host.memory.begin() + static_cast<ptrdiff_t>(kWrites - SimHost::kBase + kWriteBytes));
  }

  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool one_in(uint64_t bound) { return below(bound) == 0; }

  void post_random() {
    uint64_t length = 0;
    switch (below(6)) {
      case 0:
        length = 0;
        break;
      case 1:
        length = 1 + below(16);
        break;
      case 2:
        length = mtu_ * (1 + below(3)) + below(3) - 1;
        break;
      case 3:
        length = below(24 * mtu_);
        break;
      default:
        length = below(3 * mtu_);
    }
    length = std::min<uint64_t>(length, 24 << 10);
    SendWr wr;
    wr.wr_id = posted_;
    wr.flags = one_in(8) ? send_flag::kFence : 0;
    if (one_in(4)) wr.flags |= send_flag::kSolicited;
    wr.imm_or_rkey = static_cast<uint32_t>(random_());
    wr.rkey = kKey;
    const bool rc = service_ == Service::kRc;
    switch (below(rc ? 9 : 4)) {
      case 0:
      case 1:
        return post_message(wr,
                            one_in(2)   ? Opcode::kSend
                            : one_in(2) ? Opcode::kSendWithImm
                                        : Opcode::kSendWithInv,
                            length);
      case 2:
        return post_message(wr, Opcode::kRdmaWriteWithImm, length);
      case 3:
      case 4:
        return post_message(wr, Opcode::kRdmaWrite, length);
      case 5:
      case 6:
        return post_read(wr, length);
      case 7:
        return post_atomic(wr);
      default:
        wr.opcode = Opcode::kLocalInv;
        return post(wr);
    }
  }

  /// A receive that any message of this test fits.
  void post_receive() {
    const auto first = static_cast<uint32_t>(below(kReceiveEach));
    to_.host.receives.push_back(
        {receives_posted_++,
         {{receives_at_, first, kKey}, {receives_at_ + first, static_cast<uint32_t>(kReceiveEach) - first, kKey}}});
    receives_at_ += kReceiveEach;
  }

  uint64_t posted() const { return posted_; }
  uint64_t messages_with_receive() const { return expected_receives_.size(); }

  /// After the end of a run. `lossless`: everything must have succeeded.
  void verify(bool must_succeed) {
    const auto& done = from_.host.done;
    ASSERT_EQ(posted_, done.size()) << "each request completes once";
    size_t successes = 0;
    while (successes < done.size() && done[successes].status == WcStatus::kSuccess) ++successes;
    for (size_t i = 0; i < done.size(); ++i) {
      ASSERT_EQ(i, done[i].wr_id) << "in the order of posting";
      if (i == successes) {
        ASSERT_TRUE(done[i].status == WcStatus::kRetryExcErr || done[i].status == WcStatus::kRnrRetryExcErr)
            << static_cast<int>(done[i].status);
      } else if (i > successes) {
        ASSERT_EQ(WcStatus::kWrFlushErr, done[i].status);
      }
    }
    if (must_succeed) {
      ASSERT_EQ(posted_, successes) << "then status " << static_cast<int>(done[successes].status);
    }
    // Receives: those of the requests that succeeded, and perhaps of some whose acknowledgement was lost.
    size_t sure = 0;
    while (sure < expected_receives_.size() && expected_receives_[sure].wr_id < successes) ++sure;
    const auto& received = to_.host.received;
    ASSERT_GE(received.size(), sure);
    ASSERT_LE(received.size(), expected_receives_.size());
    for (size_t i = 0; i < received.size(); ++i) check_receive(received[i], expected_receives_[i], i);
    for (const auto& [wr_id, result] : results_) {
      if (wr_id >= successes) continue;
      ASSERT_EQ(0, result.bytes.empty() ? 0
                                        : std::memcmp(from_.host.at(result.address, result.bytes.size()),
                                                      result.bytes.data(), result.bytes.size()))
          << "what request " << wr_id << " read";
    }
    // Requests after the last success may have been executed or not: only what is sure can be compared.
    for (const Write& write : writes_) {
      if (write.wr_id >= successes) continue;
      ASSERT_EQ(0, std::memcmp(to_.host.at(kWrites + write.offset, write.length), &shadow_[write.offset], write.length))
          << "what request " << write.wr_id << " wrote";
    }
    if (successes == posted_) {
      ASSERT_EQ(0, std::memcmp(to_.host.at(kWrites, kWriteBytes), shadow_.data(), kWriteBytes)) << "and nothing else";
      for (uint64_t i = 0; i < kWordCount; ++i) {
        uint64_t word;
        std::memcpy(&word, to_.host.at(kWords + 8 * i, 8), 8);
        ASSERT_EQ(words_[i], word) << "atomics happen exactly once";
      }
    }
  }

  /// UC: what arrives is whole, in order, and at most once.
  void verify_unreliable() {
    const auto& done = from_.host.done;
    ASSERT_EQ(posted_, done.size());
    for (size_t i = 0; i < done.size(); ++i) ASSERT_EQ(WcStatus::kSuccess, done[i].status);
    size_t next = 0;
    for (const SimHost::Received& received : to_.host.received) {
      while (next < expected_receives_.size() && !matches(received, expected_receives_[next])) ++next;
      ASSERT_LT(next, expected_receives_.size()) << "a message that was not sent, or out of order, or twice";
      ++next;
    }
  }

 private:
  struct ExpectedReceive {
    uint64_t wr_id;
    WcOpcode opcode;
    uint64_t length;
    uint32_t imm;
    uint32_t flags;
    bool solicited;
    std::vector<std::byte> bytes;  ///< of a SEND
  };
  struct Result {
    uint64_t address;
    std::vector<std::byte> bytes;
  };
  struct Write {
    uint64_t wr_id;
    uint64_t offset;
    uint64_t length;
  };

  /// Different everywhere, so that a byte in the wrong place shows.
  void fill(std::byte* to, uint64_t length) {
    uint64_t word = random_();
    for (uint64_t i = 0; i < length; i += 8) {
      word += 0x9e3779b97f4a7c15;
      const uint64_t mixed = word ^ word >> 29;
      std::memcpy(to + i, &mixed, 8);
    }
  }
  void post(const SendWr& wr) {
    from_.connection.requester().post(wr, static_cast<uint32_t>(posted_));
    ++posted_;
  }
  /// `length` bytes of [begin, ...) in one to four pieces.
  std::vector<Sge> pieces_of(uint64_t begin, uint64_t length) {
    std::vector<Sge> list;
    uint64_t at = 0;
    for (uint64_t left = 1 + below(4); left > 0 && at < length; --left) {
      const uint64_t bytes = left == 1 ? length - at : below(length - at + 1);
      list.push_back({begin + at, static_cast<uint32_t>(bytes), kKey});
      at += bytes;
    }
    return list;
  }
  void post_message(SendWr wr, Opcode opcode, uint64_t length) {
    wr.opcode = opcode;
    const bool writes = opcode == Opcode::kRdmaWrite || opcode == Opcode::kRdmaWriteWithImm;
    if (sources_at_ + length > kSourceBytes) sources_at_ = 0;
    const uint64_t source = kSources + sources_at_;
    const std::byte* bytes = from_.host.at(source, length);
    if (writes) {
      if (writes_at_ + length > kWriteBytes) return;
      wr.remote_addr = kWrites + writes_at_;
      writes_.push_back({posted_, writes_at_, length});
      std::copy(bytes, bytes + length, shadow_.begin() + static_cast<ptrdiff_t>(writes_at_));
      writes_at_ += length;
    }
    if (opcode != Opcode::kRdmaWrite) {
      ExpectedReceive expected{posted_, writes ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv,
                               length,  0,
                               0,       (wr.flags & send_flag::kSolicited) != 0,
                               {}};
      if (opcode != Opcode::kSend) {
        expected.imm = wr.imm_or_rkey;
        expected.flags = opcode == Opcode::kSendWithInv ? wc_flag::kWithInv : wc_flag::kWithImm;
      }
      if (!writes) expected.bytes.assign(bytes, bytes + length);
      expected_receives_.push_back(std::move(expected));
    }
    std::vector<Sge> list = pieces_of(source, length);
    std::vector<std::byte> inlined;
    if (length > 0 && length <= 200 && one_in(2)) {
      // Inline data may change as soon as the call returns.
      inlined.assign(bytes, bytes + length);
      list = {{reinterpret_cast<uint64_t>(inlined.data()), static_cast<uint32_t>(length), 0}};
      wr.flags |= send_flag::kInline;
    }
    wr.sg_list = list.data();
    wr.num_sge = static_cast<uint32_t>(list.size());
    post(wr);
    std::fill(inlined.begin(), inlined.end(), std::byte{0xee});
    sources_at_ += length;
  }
  void post_read(SendWr wr, uint64_t length) {
    if (results_at_ + length > kResultBytes) return;
    wr.opcode = Opcode::kRdmaRead;
    const uint64_t offset = below(kConstantBytes - length + 1);
    wr.remote_addr = kConstants + offset;
    const std::byte* bytes = to_.host.at(wr.remote_addr, length);
    results_[posted_] = {kResults + results_at_, {bytes, bytes + length}};
    const std::vector<Sge> list = pieces_of(kResults + results_at_, length);
    wr.sg_list = list.data();
    wr.num_sge = static_cast<uint32_t>(list.size());
    post(wr);
    results_at_ += length;
  }
  void post_atomic(SendWr wr) {
    if (results_at_ + 8 > kResultBytes) return;
    const uint64_t which = below(kWordCount);
    wr.remote_addr = kWords + 8 * which;
    uint64_t& word = words_[which];
    if (one_in(4)) {
      wr.opcode = Opcode::kAtomicWrite;
      wr.compare_add = word = random_();
      return post(wr);
    }
    std::vector<std::byte> found(8);
    std::memcpy(found.data(), &word, 8);
    results_[posted_] = {kResults + results_at_, found};
    const Sge result{kResults + results_at_, 8, kKey};
    wr.sg_list = &result;
    wr.num_sge = 1;
    if (one_in(2)) {
      wr.opcode = Opcode::kFetchAdd;
      wr.compare_add = random_();
      word += wr.compare_add;
    } else {
      wr.opcode = Opcode::kCompareSwap;
      wr.compare_add = one_in(3) ? ~word : word;
      wr.swap = random_();
      if (wr.compare_add == word) word = wr.swap;
    }
    post(wr);
    results_at_ += 8;
  }

  std::vector<std::byte> gathered(const SimHost::Received& received, uint64_t length) {
    std::vector<std::byte> bytes;
    for (const Sge& sge : received.list) {
      const uint64_t part = std::min<uint64_t>(sge.length, length - bytes.size());
      const std::byte* from = to_.host.at(sge.addr, part);
      bytes.insert(bytes.end(), from, from + part);
    }
    return bytes;
  }
  bool matches(const SimHost::Received& received, const ExpectedReceive& expected) {
    return received.message.opcode == expected.opcode && received.message.byte_len == expected.length &&
           received.message.imm_data == expected.imm && received.message.wc_flags == expected.flags &&
           received.message.solicited == expected.solicited &&
           (expected.opcode != WcOpcode::kRecv || gathered(received, expected.length) == expected.bytes);
  }
  void check_receive(const SimHost::Received& received, const ExpectedReceive& expected, size_t count) {
    ASSERT_EQ(WcStatus::kSuccess, received.status);
    ASSERT_EQ(count, received.wr_id) << "receives are used in the order of posting";
    ASSERT_TRUE(matches(received, expected)) << "message " << count;
  }

  End& from_;
  End& to_;
  Service service_;
  uint64_t mtu_;
  std::mt19937_64 random_;
  uint64_t posted_ = 0;
  uint64_t receives_posted_ = 0;
  uint64_t receives_at_ = kReceives;
  uint64_t sources_at_ = 0;
  uint64_t results_at_ = 0;
  uint64_t writes_at_ = 0;
  std::vector<std::byte> shadow_;
  std::array<uint64_t, kWordCount> words_{};
  std::vector<Write> writes_;
  std::vector<ExpectedReceive> expected_receives_;
  std::map<uint64_t, Result> results_;
};

/// What one seed stands for.
struct Scenario {
  World::Options world;
  bool dies = false;
  bool freezes = false;
  bool may_fail = false;
  /// Of several paths: this one is cut for a while, or for good (0).
  uint32_t cut = 0;
  int64_t cut_for = 0;

  Scenario(uint64_t seed, Service service, bool several_paths) {
    std::mt19937_64 random(seed ^ 0x6a09e667f3bcc908);
    const auto below = [&](uint64_t bound) { return random() % bound; };
    world.service = service;
    world.memory = Sender::kMemory;
    world.mtu = 256u << below(5);
    world.first_psn = 0x1000000 - static_cast<uint32_t>(below(100)) - 1;  // the numbers wrap in every run
    world.max_wr = 64;
    const uint64_t kind = below(4);
    world.mark_a = kind == 0 || kind == 1 ? 0 : kNupaMark;
    world.mark_b = kind == 0 || kind == 2 ? 0 : kNupaMark;
    if (below(2) == 0) world.mark_a = world.mark_b = kNupaMark;
    world.pool = below(3) == 0 ? static_cast<uint32_t>(below(8)) : 1024;
    world.max_rd_atomic = static_cast<uint8_t>(1 + below(8));
    world.limits.timeout = 10;  // 4.2 ms
    constexpr double kLosses[] = {0, 0, 0.01, 0.05, 0.2};
    sim::LinkFaults& faults = world.link.faults;
    faults.loss = kLosses[below(5)];
    faults.duplication = below(2) == 0 ? 0 : 0.02;
    faults.corruption = below(2) == 0 ? 0 : 0.02;
    faults.reordering = below(2) == 0 ? 0 : 0.1;
    faults.spike = below(3) == 0 ? 0.005 : 0;
    faults.spike_ns = 3'000'000;
    world.link.delay_ns = static_cast<int64_t>(1'000 + below(100'000));
    world.link.rate = below(2) == 0 ? 0 : 100'000'000 + below(1'000'000'000);
    world.link.queue_bytes = world.link.rate != 0 && below(2) == 0 ? 64 << 10 : 0;
    const auto controls = congestion_names();
    world.congestion = controls[below(controls.size())];
    if (world.link.rate != 0 && below(2) == 0) world.link.mark_bytes = 32 << 10;
    dies = below(20) == 0;
    freezes = !dies && below(10) == 0;
    // With seven repetitions a message is lost for good now and then, which is then said.
    may_fail = dies || faults.loss >= 0.05 || faults.reordering > 0 || faults.spike > 0 || world.link.queue_bytes != 0;
    if (!several_paths) return;
    world.mark_a = world.mark_b = kNupaMark;
    for (uint64_t more = 1 + below(3); more > 0; --more) {
      sim::LinkOptions link = world.link;
      link.delay_ns = static_cast<int64_t>(1'000 + below(200'000));
      link.rate = below(2) == 0 ? 0 : 30'000'000 + below(1'000'000'000);
      link.faults.loss = kLosses[below(5)];
      may_fail = may_fail || link.faults.loss >= 0.05;
      world.more_paths.push_back(link);
    }
    cut = static_cast<uint32_t>(below(world.more_paths.size() + 1));
    cut_for = below(2) == 0 ? 0 : static_cast<int64_t>(1'000'000 + below(50'000'000));
  }
};

/// Prints every packet that leaves, for a seed that fails.
void trace(World& world, const Scenario& scenario) {
  std::printf("%s, mtu %u, loss %g, marks %#x %#x, pool %u, rd_atomic %u\n", scenario.world.congestion.data(),
              scenario.world.mtu, scenario.world.link.faults.loss, scenario.world.mark_a, scenario.world.mark_b,
              scenario.world.pool, scenario.world.max_rd_atomic);
  for (End* end : {&world.a, &world.b})
    end->output.watch = [end, &world](const Packet& packet) {
      std::printf("%ld %s opcode %02x psn %06x syndrome %02x length %u\n", world.now, end == &world.a ? "a" : "b",
                  packet.opcode, packet.psn, packet.syndrome, packet.payload_length);
    };
}

/// What the runs came to: a simulation in which nothing gets through proves little.
struct Tally {
  uint64_t complete = 0;
  uint64_t gave_up = 0;  ///< a request ended with one of the errors that the specification has for it
  uint64_t to_come = 0;  ///< messages with a receive
  uint64_t came = 0;     ///< those that filled it
};

/// Cuts a path at a random moment, and mends it.
void plan_cut(World& world, const Scenario& scenario, int64_t when) {
  sim::LinkOptions cut;
  cut.faults.loss = 1;
  world.plan(when, [&world, &scenario, cut] { world.change_path(scenario.cut, cut); });
  if (scenario.cut_for == 0) return;
  const auto& given = scenario.world;
  const sim::LinkOptions mended = scenario.cut == 0 ? given.link : given.more_paths[scenario.cut - 1];
  world.plan(when + scenario.cut_for, [&world, &scenario, mended] { world.change_path(scenario.cut, mended); });
}

void run_one(uint64_t seed, Service service, bool several_paths, Tally* tally) {
  const Scenario scenario(seed, service, several_paths);
  World world(scenario.world, seed);
  Sender forth(world.a, world.b, service, scenario.world.mtu, seed * 3);
  Sender back(world.b, world.a, service, scenario.world.mtu, seed * 3 + 1);
  std::mt19937_64 random(seed + 77);
  const auto requests = Sender::kLeastRequests + random() % (Sender::kMostRequests - Sender::kLeastRequests + 1);
  for (Sender* sender : {&forth, &back}) {
    End& from = sender == &forth ? world.a : world.b;
    for (uint64_t i = 0; i < requests; ++i) {
      const auto when = world.now + static_cast<int64_t>(random() % 500'000);
      world.plan(when, [sender, &from] {
        if (!from.connection.requester().full() && from.host.done.size() <= sender->posted()) sender->post_random();
      });
    }
    // Receives come late sometimes: the other end has to wait for them.
    for (uint64_t i = 0; i < requests; ++i)
      world.plan(world.now + static_cast<int64_t>(random() % 700'000), [sender] { sender->post_receive(); });
  }
  if (several_paths) plan_cut(world, scenario, world.now + static_cast<int64_t>(random() % 600'000));
  if (scenario.dies) world.plan(world.now + static_cast<int64_t>(random() % 600'000), [&] { world.b_frozen = true; });
  if (scenario.freezes) {
    const auto when = world.now + static_cast<int64_t>(random() % 600'000);
    world.plan(when, [&] { world.b_frozen = true; });
    world.plan(when + 2'000'000, [&] { world.b_frozen = false; });
  }
  const auto finished = [&] {
    return world.plans.empty() && world.a.connection.requester().idle() &&
           (scenario.dies || world.b.connection.requester().idle());
  };
  if (std::getenv("NUPA_SIM_TRACE") != nullptr) trace(world, scenario);
  ASSERT_TRUE(world.run(finished)) << "stuck at " << world.now << " ns";
  if (scenario.dies) {
    for (const auto& done : world.a.host.done)
      ASSERT_TRUE(done.status == WcStatus::kSuccess || done.status == WcStatus::kRetryExcErr ||
                  done.status == WcStatus::kWrFlushErr);
    ASSERT_EQ(forth.posted(), world.a.host.done.size());
    return;
  }
  ASSERT_FALSE(world.a.host.refused || world.b.host.refused) << "nothing that was sent is wrong";
  if (service == Service::kUc) {
    forth.verify_unreliable();
    back.verify_unreliable();
  } else {
    forth.verify(!scenario.may_fail);
    if (::testing::Test::HasFatalFailure()) return;
    back.verify(!scenario.may_fail);
  }
  for (const End* end : {&world.a, &world.b}) {
    const auto& done = end->host.done;
    const bool whole = done.empty() || done.back().status == WcStatus::kSuccess;
    ++(whole ? tally->complete : tally->gave_up);
    tally->came += end->host.received.size();
  }
  tally->to_come += forth.messages_with_receive() + back.messages_with_receive();
  world.a.connection.responder().stop();
  world.b.connection.responder().stop();
  ASSERT_EQ(scenario.world.pool, world.pool.free()) << "each buffer is given back";
}

void run_many(Service service, uint64_t runs, bool several_paths = false) {
  const uint64_t first = number_from("NUPA_SIM_SEED", 1);
  runs = number_from("NUPA_SIM_RUNS", runs);
  Tally tally;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    run_one(seed, service, several_paths, &tally);
    if (::testing::Test::HasFatalFailure()) {
      std::printf("seed %lu; replay: NUPA_SIM_SEED=%lu NUPA_SIM_RUNS=1\n", seed, seed);
      return;
    }
  }
  std::printf("%lu ends got everything through, %lu gave up as they should; %lu of %lu messages came\n", tally.complete,
              tally.gave_up, tally.came, tally.to_come);
  if (runs >= 100) {
    EXPECT_GT(tally.complete, 9 * tally.gave_up);
    EXPECT_GT(2 * tally.came, tally.to_come);  // of an unreliable connection's some are lost
  }
}

TEST(RoceRandom, ReliableConnection_RandomRequests_CompleteAsSpecified) { run_many(Service::kRc, 10000); }
TEST(RoceRandom, SeveralPaths_RandomRequests_CompleteAsSpecified) { run_many(Service::kRc, 2000, true); }
TEST(RoceRandom, UnreliableConnection_RandomRequests_CompleteAsSpecified) { run_many(Service::kUc, 2000); }

}  // namespace
}  // namespace nupa::roce::testing
