// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A packet loop and its peers in one process.
#include <fcntl.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "packet_loop_fixture.h"

namespace nupa::netdev {

using namespace packet_loop_test;

constexpr uint8_t kUdpNumber = 17, kTcpNumber = 6, kIcmpNumber = 1;
constexpr size_t kHeader = sizeof(VirtioHeader);

/// A packet of either family with so many bytes behind its first header.
inline Frame packet_of(const std::string& from, const std::string& to, size_t payload, bool may_be_cut = false,
                       uint8_t protocol = kUdpNumber) {
  const Gid source = *address_from(from), destination = *address_from(to);
  const bool ipv4 = from.find(':') == from.npos;
  const size_t header = ipv4 ? 20 : 40, total = ipv4 ? header + payload : payload;
  Frame made(kHeader + header + payload);
  std::byte* const packet = made.data() + kHeader;
  for (size_t i = 0; i < payload; ++i) packet[header + i] = static_cast<std::byte>(i * 7);
  packet[0] = std::byte{static_cast<uint8_t>(ipv4 ? 0x45 : 0x60)};
  packet[ipv4 ? 2 : 4] = static_cast<std::byte>(total >> 8);
  packet[ipv4 ? 3 : 5] = static_cast<std::byte>(total);
  packet[ipv4 ? 9 : 6] = std::byte{protocol};
  packet[ipv4 ? 8 : 7] = std::byte{64};
  if (ipv4 && !may_be_cut) packet[6] = std::byte{0x40};
  const size_t first = ipv4 ? 12 : 0, length = 16 - first;
  std::memcpy(packet + (ipv4 ? 12 : 8), &source.raw[first], length);
  std::memcpy(packet + (ipv4 ? 12 : 8) + length, &destination.raw[first], length);
  return made;
}

/// The interface takes and gives packets of 10.77.0.1 and fd77::1.
class NetdevPacketLoopRules : public NetdevPacketLoop {
 protected:
  /// A peer whose end of the channel is moved by the test.
  struct Peer {
    std::string address;
    std::unique_ptr<CompletionQueue> cq;
    std::unique_ptr<PeerChannel> channel;
    Link* link = nullptr;

    const LinkStatistics& traffic() const { return *link->traffic; }
    void turn() const {
      WorkCompletion done;
      while (cq->poll(&done, 1) == 1) channel->on_completion(done);
    }
    bool put(const Frame& frame) const {
      const auto until = std::chrono::steady_clock::now() + kTimeout;
      std::byte* room = nullptr;
      while ((room = channel->reserve()) == nullptr && std::chrono::steady_clock::now() < until) turn();
      if (room == nullptr) return false;
      std::memcpy(room, frame.data(), frame.size());
      channel->commit(static_cast<uint32_t>(frame.size()));
      channel->flush();
      turn();
      return true;
    }
    /// Empty: none comes.
    Frame take() const {
      const auto until = std::chrono::steady_clock::now() + kTimeout;
      while (std::chrono::steady_clock::now() < until) {
        turn();
        if (const auto frame = channel->next()) {
          Frame taken(frame->begin(), frame->end());
          channel->done();
          channel->give_back();
          return taken;
        }
        std::this_thread::yield();
      }
      return {};
    }
  };

  End& make_node(const std::vector<std::string>& prefixes = {"10.77.0.1/24", "fd77::1/64"}) {
    End& end = ends.emplace_back(*device, 1);
    LocalAddresses own{{}, kMaxMtu};
    for (const std::string& prefix : prefixes) own.addresses.push_back(*Prefix::parse(prefix));
    EXPECT_TRUE(end.open(own));
    return end;
  }
  Peer& join(End& node, const std::vector<std::string>& addresses, uint32_t mtu = kMaxMtu, bool carries = true) {
    Peer& peer = peers.emplace_back();
    peer.address = addresses.front();
    peer.cq = std::move(*device->create_cq({.entries = PeerChannel::kMaxCompletions}));
    peer.channel = std::move(*PeerChannel::create(*device, *pd, *peer.cq, next_channel++));
    PeerChannel& here = channel_of(node);
    EXPECT_EQ(0, here.connect(path(), peer.channel->info()));
    EXPECT_EQ(0, peer.channel->connect(path(), here.info()));
    here.start_sending();
    peer.channel->start_sending();
    peer.link = &node.links.emplace_back();
    for (const std::string& address : addresses) peer.link->addresses.push_back(*address_from(address));
    peer.link->mtu = mtu;
    peer.link->takes_datagrams = true;
    peer.link->channels = {&here};
    peer.link->traffic = &node.traffic.emplace_back();
    node.packet_loop->call([&] {
      node.packet_loop->attach(*peer.link);
      if (carries) node.packet_loop->route_to(*peer.link);
    });
    return peer;
  }
  /// The peer sends these: what the node's kernel gets of them.
  static std::vector<Frame> delivered(const End& node, const Peer& from, const std::vector<Frame>& frames) {
    const Frame last = packet_of(from.address, "10.77.0.1", 3);
    for (const Frame& frame : frames) EXPECT_TRUE(from.put(frame));
    EXPECT_TRUE(from.put(last));
    std::vector<Frame> taken;
    for (;;) {
      Frame one = node.take();
      EXPECT_FALSE(one.empty()) << "the last one does not come";
      if (one.empty() || one == last) return taken;
      taken.push_back(std::move(one));
    }
  }
  /// The node's kernel sends these: what the peer gets of them.
  static std::vector<Frame> arrived(const End& node, const Peer& at, const std::vector<Frame>& frames) {
    const Frame last = packet_of("10.77.0.1", at.address, 3);
    for (const Frame& frame : frames) node.give(frame);
    node.give(last);
    std::vector<Frame> taken;
    for (;;) {
      Frame one = at.take();
      EXPECT_FALSE(one.empty()) << "the last one does not come";
      node.packet_loop->call([] {});  // it has counted this one
      if (one.empty() || one == last) return taken;
      taken.push_back(std::move(one));
    }
  }
  static bool await_counts(const std::function<bool()>& holds, milliseconds timeout = kTimeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!holds() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return holds();
  }
  /// The peer puts a record before the node that is none: its channel is over.
  static bool breaks(const Peer& peer) {
    if (peer.channel->reserve() == nullptr) return false;
    peer.channel->commit(kMaxFrameBytes + 1);
    peer.channel->flush();
    return true;
  }
  /// All that its kernel has given has been read.
  static void await_read(const End& node) {
    EXPECT_TRUE(await_counts([&] {
      pollfd unread{node.inner, POLLIN, 0};
      return ::poll(&unread, 1, 0) == 0;
    }));
    node.packet_loop->call([] {});
  }
  void TearDown() override {
    ends.clear();  // they write into memory of the peers
    peers.clear();
    NetdevPacketLoop::TearDown();
  }

  std::deque<Peer> peers;
};

}  // namespace nupa::netdev
