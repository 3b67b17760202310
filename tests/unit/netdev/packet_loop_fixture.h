// SPDX-License-Identifier: Apache-2.0
#pragma once
// Packet loops and channels of several nodes in one process. A pair of sockets stands for each node's interface, so
// that every frame that a kernel could give or take can be told; other ends of channels may be hostile.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netdev/packet_loop.h"

namespace nupa::netdev::packet_loop_test {

using Frame = std::vector<std::byte>;
using std::chrono::milliseconds;
constexpr milliseconds kTimeout{20000};

/// 10.77.0.FROM to 10.77.0.TO, by UDP without ports, behind a header without wishes.
inline Frame frame(int from, int to, size_t payload, int mark = 0) {
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

inline Prefix address_of(int number) { return *Prefix::parse("10.77.0." + std::to_string(number) + "/24"); }

/// A node's pump and the outer end of its interface.
struct End {
  Device& device;
  int number;
  int interface = -1, inner = -1;
  std::unique_ptr<PacketLoop> packet_loop;
  std::deque<std::unique_ptr<PeerChannel>> channels;
  std::deque<Link> links;
  std::deque<LinkStatistics> traffic;
  std::atomic<int> failures{0};
  std::function<void()> on_failure;  ///< of the pump's thread

  End(Device& of, int name) : device(of), number(name) {}
  bool open(uint32_t mtu = kMaxMtu) { return open(LocalAddresses{{address_of(number)}, mtu}); }
  bool open(const LocalAddresses& own) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return false;
    interface = pair[0];
    inner = pair[1];
    const int room = 1 << 20;
    for (const int fd : pair) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    auto started = PacketLoop::start(device, inner, own,
                                     {[this] {
                                        ++failures;
                                        if (on_failure) on_failure();
                                      },
                                      {}});
    if (!started) return false;
    packet_loop = std::move(*started);
    return true;
  }
  ~End() {
    for (Link& link : links) packet_loop->insist([&] { packet_loop->detach(link); });
    for (const auto& channel : channels) packet_loop->insist([&] { packet_loop->unwatch(*channel); });
    channels.clear();
    packet_loop.reset();
    for (const int fd : {interface, inner}) close(fd);
  }
  void attach(PeerChannel& channel, int peer, uint32_t mtu = kMaxMtu, bool takes_datagrams = true) {
    Link& link = links.emplace_back();
    link.addresses = {address_of(peer).address};
    link.mtu = mtu;
    link.takes_datagrams = takes_datagrams;
    link.channels = {&channel};
    link.traffic = &traffic.emplace_back();
    packet_loop->call([&] {
      packet_loop->attach(link);
      packet_loop->route_to(link);
    });
  }
  /// Waits for room, as a kernel's qdisc does.
  void give(const Frame& frame) const {
    const auto until = std::chrono::steady_clock::now() + kTimeout;
    while (::send(interface, frame.data(), frame.size(), 0) < 0) {
      ASSERT_EQ(EAGAIN, errno);
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      pollfd room{interface, POLLOUT, 0};
      ::poll(&room, 1, 10);
    }
  }
  /// The next frame that the node gives its kernel; empty: there is none for so long.
  Frame take(milliseconds timeout = kTimeout) const {
    pollfd ready{interface, POLLIN, 0};
    Frame taken(kMaxFrameBytes);
    if (::poll(&ready, 1, static_cast<int>(timeout.count())) != 1) return {};
    const ssize_t bytes = ::recv(interface, taken.data(), taken.size(), 0);
    taken.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    packet_loop->call([] {});  // it has counted this one
    return taken;
  }
};

class NetdevPacketLoop : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("NUPA_TRANSPORT", GetParam(), 1);
    auto opened = open_device("nupa0");
    ASSERT_TRUE(opened) << opened.error().what();
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
  bool by_memory() const { return std::strcmp(GetParam(), "shm") == 0; }
  ConnectOptions path() const {
    return {.dgid = device->query_gid(1, 1)->gid, .max_rd_atomic = 1, .path_mtu = Mtu::k1024, .hop_limit = 64};
  }
  End& make(uint32_t mtu = kMaxMtu) {
    End& end = ends.emplace_back(*device, static_cast<int>(ends.size()) + 1);
    EXPECT_TRUE(end.open(mtu));
    return end;
  }
  PeerChannel& channel_of(End& end) {
    end.channels.push_back(std::move(*PeerChannel::create(*device, *pd, end.packet_loop->cq(), next_channel++)));
    PeerChannel& channel = *end.channels.back();
    EXPECT_EQ(0, end.packet_loop->watch(channel));
    return channel;
  }
  void join(End& one, End& other, uint32_t mtu_of_other = kMaxMtu, bool other_takes_datagrams = true) {
    PeerChannel &here = channel_of(one), &there = channel_of(other);
    ASSERT_EQ(0, here.connect(path(), there.info()));
    ASSERT_EQ(0, there.connect(path(), here.info()));
    here.start_sending();
    there.start_sending();
    EXPECT_EQ(by_memory(), here.is_mapped());
    one.attach(here, other.number, mtu_of_other, other_takes_datagrams);
    other.attach(there, one.number);
  }

  /// A queue pair that knows no rules, in a channel's place.
  struct Hostile {
    std::unique_ptr<CompletionQueue> cq;
    std::unique_ptr<MemoryRegion> region;
    std::unique_ptr<QueuePair> qp;
    ChannelInfo victim;

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
    void send_word(uint32_t word) { post(Opcode::kRdmaWriteWithImm, 0, "", 0, word); }
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
    PeerChannel& channel = channel_of(victim);
    hostile->victim = channel.info();
    const ChannelInfo own{hostile->qp->number(), 0, hostile->region->rkey(),
                          reinterpret_cast<uint64_t>(hostile->region->addr())};
    const ChannelInfo known = channel.info();
    ASSERT_EQ(0, channel.connect(path(), own));
    ConnectOptions options = path();
    options.dest_qp_num = known.qp_num;
    options.access_flags = access::kRemoteWrite | access::kRemoteRead;
    options.timeout = 16;
    options.sq_psn = known.psn;
    ASSERT_EQ(0, nupa::connect(*hostile->qp, options));
    channel.start_sending();
    victim.attach(channel, 200);
  }
  /// The channel is over within the patience, with this error, and the node is told.
  void expect_broken(End& victim, int error) {
    PeerChannel& channel = *victim.channels.back();
    const auto until = std::chrono::steady_clock::now() + kTimeout;
    while (victim.failures == 0 && std::chrono::steady_clock::now() < until) usleep(1000);
    EXPECT_EQ(1, victim.failures);
    EXPECT_EQ(error, channel.error());
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
  uint64_t next_channel = 1;
};

}  // namespace nupa::netdev::packet_loop_test
