// Pumps and lanes of several nodes in one process. A pair of sockets stands for each node's interface, so that every
// frame that a kernel could give or take can be told; other ends of lanes may be hostile.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>

#include "api/netdev/pump.h"

namespace nupa::netdev {
namespace {

using Frame = std::vector<std::byte>;
using std::chrono::milliseconds;
constexpr milliseconds kPatience{20000};

/// 10.77.0.FROM to 10.77.0.TO, by UDP without ports, behind a header without wishes.
Frame frame(int from, int to, size_t payload, int mark = 0) {
  Frame made(sizeof(VirtioHeader) + 20 + payload, static_cast<std::byte>(mark));
  std::byte* const packet = made.data() + sizeof(VirtioHeader);
  std::memset(made.data(), 0, sizeof(VirtioHeader) + 20);
  const size_t length = 20 + payload;
  packet[0] = std::byte{0x45};
  packet[2] = static_cast<std::byte>(length >> 8);
  packet[3] = static_cast<std::byte>(length);
  packet[6] = std::byte{0x40};
  packet[8] = std::byte{64};
  packet[9] = std::byte{17};
  const int address[8] = {10, 77, 0, from, 10, 77, 0, to};
  for (size_t i = 0; i < 8; ++i) packet[12 + i] = static_cast<std::byte>(address[i]);
  return made;
}

Prefix address_of(int number) { return *Prefix::parse("10.77.0." + std::to_string(number) + "/24"); }

/// A node's pump and the outer end of its interface.
struct End {
  Device& device;
  int number;
  int interface = -1, inner = -1;
  std::unique_ptr<Pump> pump;
  std::deque<std::unique_ptr<Lane>> lanes;
  std::deque<Link> links;
  std::deque<Traffic> traffic;
  std::atomic<int> failures{0};

  End(Device& of, int name) : device(of), number(name) {}
  bool open(uint32_t mtu = kMaxMtu) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return false;
    interface = pair[0];
    inner = pair[1];
    const int room = 1 << 20;
    for (const int fd : pair) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    auto started = Pump::start(device, inner, {{address_of(number)}, mtu});
    if (!started) return false;
    pump = std::move(*started);
    pump->call([this] { pump->on_failure = [this] { ++failures; }; });
    return true;
  }
  ~End() {
    for (Link& link : links) pump->call([&] { pump->detach(link); });
    for (const auto& lane : lanes) pump->call([&] { pump->unwatch(*lane); });
    lanes.clear();
    pump.reset();
    for (const int fd : {interface, inner}) close(fd);
  }
  void attach(Lane& lane, int peer, uint32_t mtu = kMaxMtu, bool takes_datagrams = true) {
    Link& link = links.emplace_back();
    link.addresses = {address_of(peer).address};
    link.mtu = mtu;
    link.takes_datagrams = takes_datagrams;
    link.lanes = {&lane};
    link.traffic = &traffic.emplace_back();
    pump->call([&] {
      pump->attach(link);
      pump->route_to(link);
    });
  }
  /// Waits for room, as a kernel's qdisc does.
  void give(const Frame& frame) const {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (::send(interface, frame.data(), frame.size(), 0) < 0) {
      ASSERT_EQ(EAGAIN, errno);
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      pollfd room{interface, POLLOUT, 0};
      ::poll(&room, 1, 10);
    }
  }
  /// The next frame that the node gives its kernel; empty: there is none for so long.
  Frame take(milliseconds patience = kPatience) const {
    pollfd ready{interface, POLLIN, 0};
    Frame taken(kMaxFrameBytes);
    if (::poll(&ready, 1, static_cast<int>(patience.count())) != 1) return {};
    const ssize_t bytes = ::recv(interface, taken.data(), taken.size(), 0);
    taken.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    pump->call([] {});  // it has counted this one
    return taken;
  }
};

class NetdevPump : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("NUPA_TRANSPORT", GetParam(), 1);
    auto opened = open_device("nupa0");
    ASSERT_TRUE(opened) << opened.error().what;
    device = std::move(*opened);
    pd = std::move(*device->alloc_pd());
  }
  void TearDown() override {
    ends.clear();
    hostile.reset();
    pd.reset();
    device.reset();
    unsetenv("NUPA_TRANSPORT");
  }
  bool by_memory() const { return std::strcmp(GetParam(), "window") == 0; }
  LanePath path() const {
    LanePath path;
    path.vector.is_global = true;
    path.vector.dgid = device->query_gid(1, 1)->gid;
    path.vector.sgid_index = 1;
    path.vector.hop_limit = 64;
    return path;
  }
  End& make(uint32_t mtu = kMaxMtu) {
    End& end = ends.emplace_back(*device, static_cast<int>(ends.size()) + 1);
    EXPECT_TRUE(end.open(mtu));
    return end;
  }
  Lane& lane_of(End& end) {
    end.lanes.push_back(std::move(*Lane::create(*device, *pd, end.pump->cq(), next_lane++)));
    Lane& lane = *end.lanes.back();
    end.pump->call([&] { end.pump->watch(lane); });
    return lane;
  }
  void join(End& one, End& other, uint32_t mtu_of_other = kMaxMtu, bool other_takes_datagrams = true) {
    Lane &here = lane_of(one), &there = lane_of(other);
    ASSERT_EQ(0, here.connect(path(), there.card()));
    ASSERT_EQ(0, there.connect(path(), here.card()));
    here.start_sending();
    there.start_sending();
    EXPECT_EQ(by_memory(), here.is_mapped());
    one.attach(here, other.number, mtu_of_other, other_takes_datagrams);
    other.attach(there, one.number);
  }

  /// A queue pair that knows no rules, in a lane's place.
  struct Hostile {
    std::unique_ptr<CompletionQueue> cq;
    std::unique_ptr<MemoryRegion> region;
    std::unique_ptr<QueuePair> qp;
    LaneCard victim;

    void post(Opcode opcode, uint64_t to, const void* bytes, uint32_t length, uint32_t word = 0) {
      if (length > 0) std::memcpy(region->addr(), bytes, length);
      const Sge piece{reinterpret_cast<uint64_t>(region->addr()), length, region->lkey()};
      ASSERT_EQ(0, qp->post_send({.sg_list = &piece,
                                  .num_sge = 1,
                                  .opcode = opcode,
                                  .flags = send_flag::kSignaled | send_flag::kSolicited,
                                  .imm_or_rkey = htonl(word),
                                  .rkey = victim.rkey,
                                  .remote_addr = victim.address + to}));
      WorkCompletion done;
      while (cq->poll(&done, 1) == 0) {
      }
    }
    void write(uint64_t to, const void* bytes, uint32_t length) { post(Opcode::kRdmaWrite, to, bytes, length); }
    void tell(uint32_t word) { post(Opcode::kRdmaWriteWithImm, 0, "", 0, word); }
  };
  /// Frames of the victim's that this is to be read by, too.
  void be_hostile_to(End& victim) {
    hostile = std::make_unique<Hostile>();
    hostile->cq = std::move(*device->create_cq({.entries = 64}));
    hostile->region = std::move(
        *device->alloc_mr(*pd, kRingRegionBytes, access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead));
    hostile->qp = std::move(*device->create_qp(
        pd.get(), {.send_cq = hostile->cq.get(),
                   .recv_cq = hostile->cq.get(),
                   .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}}));
    Lane& lane = lane_of(victim);
    hostile->victim = lane.card();
    const LaneCard own{hostile->qp->number(), 0, hostile->region->rkey(),
                       reinterpret_cast<uint64_t>(hostile->region->addr())};
    const LaneCard known = lane.card();
    ASSERT_EQ(0, lane.connect(path(), own));
    using namespace qp_attr;
    QpAttr attr;
    attr.state = QpState::kInit;
    attr.access_flags = access::kRemoteWrite | access::kRemoteRead;
    ASSERT_EQ(0, hostile->qp->modify(attr, kState | kPkeyIndex | kPort | kAccessFlags));
    attr.state = QpState::kRtr;
    attr.av = path().vector;
    attr.path_mtu = path().mtu;
    attr.dest_qp_num = known.qp_num;
    ASSERT_EQ(0,
              hostile->qp->modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer));
    attr.state = QpState::kRts;
    attr.sq_psn = known.psn;
    attr.timeout = 16;
    attr.retry_cnt = attr.rnr_retry = 7;
    ASSERT_EQ(0, hostile->qp->modify(attr, kState | kSqPsn | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic));
    lane.start_sending();
    victim.attach(lane, 200);
  }
  /// The lane is over within the patience, with this error, and the node is told.
  void expect_broken(End& victim, int error) {
    Lane& lane = *victim.lanes.back();
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (victim.failures == 0 && std::chrono::steady_clock::now() < until) usleep(1000);
    EXPECT_EQ(1, victim.failures);
    EXPECT_EQ(error, lane.error());
  }
  void expect_passage(End& from, End& to) {
    const Frame sent = frame(from.number, to.number, 333, 7);
    from.give(sent);
    EXPECT_EQ(sent, to.take());
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> pd;
  std::deque<End> ends;
  std::unique_ptr<Hostile> hostile;
  uint64_t next_lane = 1;
};

TEST_P(NetdevPump, FramesOfEverySizeArriveInTheirOrder) {
  End &one = make(), &other = make();
  join(one, other);
  for (int turn = 0; turn < 500; ++turn) {
    const size_t payload =
        turn % 5 == 0 ? 65500 - static_cast<size_t>(turn % 7) : static_cast<size_t>(turn * 37 % 4000);
    const Frame sent = frame(1, 2, payload, turn);
    one.give(sent);
    const Frame back = frame(2, 1, payload / 2, turn + 1);
    other.give(back);
    ASSERT_EQ(sent, other.take()) << turn;
    ASSERT_EQ(back, one.take()) << turn;
  }
  EXPECT_EQ(500u, one.traffic[0].sent.get());
  EXPECT_EQ(500u, one.traffic[0].received.get());
  EXPECT_EQ(one.traffic[0].sent_bytes.get(), other.traffic[0].received_bytes.get());
}

TEST_P(NetdevPump, SegmentsOfDatagramsAreCutForWhoseKernelDoesNotTakeThem) {
  End &one = make(), &other = make(), &older = make();
  join(one, other);
  join(one, older, kMaxMtu, false);
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.gso_type = VirtioHeader::kGsoUdp;
  header.gso_size = 1000;
  header.csum_start = 20;
  header.csum_offset = 6;
  for (const int to : {2, 3, 255}) {
    Frame large = frame(1, to, 8 + 2500, to);
    std::memcpy(large.data(), &header, sizeof header);
    one.give(large);
    if (to != 3) {
      EXPECT_EQ(large, other.take()) << to;
    }
    if (to == 2) continue;
    for (const size_t bytes : {1000u, 1000u, 500u}) {
      const Frame got = older.take();
      ASSERT_EQ(sizeof header + 28 + bytes, got.size()) << to;
      VirtioHeader small;
      std::memcpy(&small, got.data(), sizeof small);
      EXPECT_EQ(VirtioHeader::kGsoNone, small.gso_type);
      EXPECT_EQ(VirtioHeader::kNeedsChecksum, small.flags);
      EXPECT_EQ(static_cast<std::byte>(to), got.back());
    }
  }
  EXPECT_TRUE(older.take(milliseconds(20)).empty());
}

TEST_P(NetdevPump, WhatIsForNobodyIsAnsweredAndWhatIsForAllGoesToEach) {
  End &one = make(), &other = make(), &third = make();
  join(one, other);
  join(one, third);
  one.give(frame(1, 77, 100));
  const Frame answer = one.take();
  ASSERT_EQ(sizeof(VirtioHeader) + 20 + 8 + 120, answer.size());
  EXPECT_EQ(std::byte{1}, answer[sizeof(VirtioHeader) + 9]);  // ICMP
  EXPECT_EQ(1u, one.pump->unroutable());
  const Frame to_all = frame(1, 255, 100);
  one.give(to_all);
  EXPECT_EQ(to_all, other.take());
  EXPECT_EQ(to_all, third.take());
}

TEST_P(NetdevPump, OthersSourcesAndDestinationsAreDropped) {
  End &one = make(), &other = make();
  join(one, other);
  one.give(frame(3, 2, 100));
  expect_passage(one, other);
  EXPECT_EQ(1u, other.traffic[0].wrong_source.get());
  EXPECT_EQ(1u, other.traffic[0].received.get());
}

TEST_P(NetdevPump, GarbageFromAnInterfaceHurtsNobody) {
  End &one = make(), &other = make(1280);
  join(one, other, 1280);
  std::mt19937 random(11);
  for (int turn = 0; turn < 3000; ++turn) {
    Frame garbage = frame(1, 2, random() % 3000);
    if (turn % 3 == 0) garbage.resize(random() % garbage.size() + 1);
    for (auto changes = turn % 3 == 0 ? garbage.size() : random() % 4; changes > 0; --changes)
      garbage[random() % std::min<size_t>(garbage.size(), 52)] = static_cast<std::byte>(random());
    one.give(garbage);
    if (turn % 50 == 0) {
      while (!one.take(milliseconds(0)).empty()) {
      }
      while (!other.take(milliseconds(1)).empty()) {
      }
    }
  }
  const Frame last = frame(1, 2, 500, 99);
  one.give(last);
  Frame taken;
  do {
    taken = other.take();
  } while (!taken.empty() && taken != last);
  EXPECT_EQ(last, taken);
  EXPECT_EQ(0, one.failures + other.failures);
  EXPECT_GT(other.traffic[0].malformed.get(), 0u);
}

TEST_P(NetdevPump, AHostileEndBreaksItsOwnLaneOnly) {
  End &one = make(), &other = make();
  join(one, other);
  // A tail that is not there, records that are none, words that say what cannot be.
  const std::vector<std::function<void()>> attacks = {
      [&] {
        const uint64_t tail = 64 * 1'000'000;
        hostile->write(0, &tail, sizeof tail);
        hostile->tell(2u << 30);
      },
      [&] {
        const uint64_t tail = 63;
        hostile->write(0, &tail, sizeof tail);
        hostile->tell(2u << 30);
      },
      [&] {
        const Record record{kMaxFrameBytes + 1, 0};
        hostile->write(sizeof(RingWords), &record, sizeof record);
        hostile->tell(0u << 30 | 2048);
      },
      [&] {
        const Record records[] = {{0, 0}, {}, {}, {}, {}, {}, {}, {}, {Record::kSkip, 0}};  // the second line
        hostile->write(sizeof(RingWords), &records, sizeof records);
        hostile->tell(0u << 30 | 2);
      },
      [&] { hostile->tell(0u << 30 | 0x3fffffff); },
      [&] { hostile->tell(1u << 30 | 5); },
      [&] { hostile->post(Opcode::kSend, 0, "no", 0); },
  };
  for (size_t i = 0; i < attacks.size(); ++i) {
    SCOPED_TRACE(i);
    be_hostile_to(one);
    attacks[i]();
    expect_broken(one, EPROTO);
    expect_passage(one, other);
    expect_passage(other, one);
    Link& link = one.links.back();
    one.pump->call([&] {
      one.pump->detach(link);
      one.pump->unwatch(*one.lanes.back());
    });
    one.links.pop_back();
    one.lanes.pop_back();
    one.failures = 0;
    hostile.reset();
  }
}

TEST_P(NetdevPump, WhatAHostileEndSaysThatItHasReadIsTakenAsFarAsItCanBe) {
  End &one = make(), &other = make();
  join(one, other);
  be_hostile_to(one);
  auto* const words = static_cast<RingWords*>(hostile->region->addr());
  for (const uint64_t head : {uint64_t{1} << 60, UINT64_MAX, uint64_t{64} * 1000}) {
    words->head.store(head);
    for (int i = 0; i < 100; ++i) one.give(frame(1, 200, 60000));
    expect_passage(one, other);
  }
  EXPECT_EQ(0, one.lanes.back()->error());
}

TEST_P(NetdevPump, WhoDoesNotReadHoldsUpNobodyForLong) {
  End &one = make(), &stopped = make(), &third = make();
  join(one, stopped);
  join(one, third);
  std::promise<void> go;
  std::thread holds([&] { stopped.pump->call([&] { go.get_future().wait(); }); });
  // More than the ring and what is put aside take; meanwhile the interface is not read.
  constexpr int kFrames = 300;
  for (int i = 0; i < kFrames; ++i) one.give(frame(1, 2, 65000));
  expect_passage(one, third);
  EXPECT_GT(one.traffic[0].no_room.get(), 0u);
  const uint64_t lost = one.traffic[0].no_room.get();
  go.set_value();
  holds.join();
  const Traffic& there = stopped.traffic[0];
  uint64_t taken = 0;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  // An interface that is full refuses some, as a kernel without memory may.
  while (taken < there.received.get() || there.received.get() + there.refused.get() + lost < kFrames) {
    if (!stopped.take(milliseconds(10)).empty()) ++taken;
    ASSERT_LT(std::chrono::steady_clock::now(), until) << taken << " taken, " << there.refused.get() << " refused";
  }
  EXPECT_GT(taken, 8u);
  expect_passage(one, stopped);
  EXPECT_EQ(0, one.failures + stopped.failures + third.failures);
}

TEST_P(NetdevPump, PeersThatFloodTakeTurns) {
  End& victim = make();
  End *const many = &make(), *const few = &make();
  join(*many, victim);
  join(*few, victim);
  std::atomic<bool> stop{false};
  const auto flood = [&](End& from, size_t payload) {
    const Frame sent = frame(from.number, 1, payload);
    pollfd room{from.interface, POLLOUT, 0};
    while (!stop)
      if (::send(from.interface, sent.data(), sent.size(), 0) < 0) ::poll(&room, 1, 10);
  };
  std::thread one([&] { flood(*many, 8000); });
  std::thread other([&] { flood(*few, 8000); });
  uint64_t from[4] = {};
  for (int i = 0; i < 20000; ++i) {
    const Frame taken = victim.take();
    if (taken.empty()) break;
    ++from[std::to_integer<size_t>(taken[sizeof(VirtioHeader) + 15]) % 4];
  }
  stop = true;
  one.join();
  other.join();
  // Nobody is left out; how even it is depends on the threads that flood.
  EXPECT_GT(from[2], 2000u);
  EXPECT_GT(from[3], 2000u);
}

INSTANTIATE_TEST_SUITE_P(Ways, NetdevPump, ::testing::Values("window", "roce"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace nupa::netdev
