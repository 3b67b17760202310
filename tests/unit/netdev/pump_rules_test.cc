// SPDX-License-Identifier: Apache-2.0
// What a pump lets through and what it counts: a node's interface on one side, peers' lanes that are moved by hand on
// the other.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "../../support/soon.h"
#include "base/unique_fd.h"
#include "pump_fixture.h"

namespace nupa::netdev {
namespace {

using namespace pump_test;

constexpr uint8_t kUdpNumber = 17, kTcpNumber = 6, kIcmpNumber = 1;
constexpr size_t kHeader = sizeof(VirtioHeader);

uint32_t at16(const Frame& frame, size_t at) {
  return std::to_integer<uint32_t>(frame[at]) << 8 | std::to_integer<uint32_t>(frame[at + 1]);
}

/// A packet of either family with so many bytes behind its first header.
Frame packet_of(const std::string& from, const std::string& to, size_t payload, bool may_be_cut = false,
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

Frame with_header(Frame frame, const VirtioHeader& header) {
  std::memcpy(frame.data(), &header, sizeof header);
  return frame;
}

/// A large segment of TCP: so many bytes of payload, in packets of so many each.
Frame segment_of(const std::string& from, const std::string& to, size_t payload, uint16_t each,
                 bool may_be_cut = false) {
  Frame made = packet_of(from, to, 20 + payload, may_be_cut, kTcpNumber);
  made[kHeader + 20 + 12] = std::byte{0x50};
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.gso_type = VirtioHeader::kGsoTcp4;
  header.gso_size = each;
  header.hdr_len = 40;
  header.csum_start = 20;
  header.csum_offset = 16;
  return with_header(std::move(made), header);
}

/// The first byte of a packet becomes one of a header without length, and itself again. Another process would do it,
/// which ThreadSanitizer does not see either.
__attribute__((noinline, no_sanitize("thread"))) void change_to_and_fro(volatile uint8_t* first) {
  constexpr int kTimes = 64;
  for (int i = 0; i < kTimes; ++i) {
    *first = 0x40;
    *first = 0x45;
  }
}

/// The interface takes and gives packets of 10.77.0.1 and fd77::1.
class NetdevPumpRules : public NetdevPump {
 protected:
  /// A peer whose end of the lane is moved by the test.
  struct Peer {
    std::string address;
    std::unique_ptr<CompletionQueue> cq;
    std::unique_ptr<Lane> lane;
    Link* link = nullptr;

    const Traffic& traffic() const { return *link->traffic; }
    void turn() const {
      WorkCompletion done;
      while (cq->poll(&done, 1) == 1) lane->on_completion(done);
    }
    bool put(const Frame& frame) const {
      const auto until = std::chrono::steady_clock::now() + kPatience;
      std::byte* room = nullptr;
      while ((room = lane->reserve()) == nullptr && std::chrono::steady_clock::now() < until) turn();
      if (room == nullptr) return false;
      std::memcpy(room, frame.data(), frame.size());
      lane->commit(static_cast<uint32_t>(frame.size()));
      lane->flush();
      turn();
      return true;
    }
    /// Empty: none comes.
    Frame take() const {
      const auto until = std::chrono::steady_clock::now() + kPatience;
      while (std::chrono::steady_clock::now() < until) {
        turn();
        if (const auto frame = lane->next()) {
          Frame taken(frame->begin(), frame->end());
          lane->done();
          lane->give_back();
          return taken;
        }
        std::this_thread::yield();
      }
      return {};
    }
  };

  End& make_node(const std::vector<std::string>& prefixes = {"10.77.0.1/24", "fd77::1/64"}) {
    End& end = ends.emplace_back(*device, 1);
    Own own{{}, kMaxMtu};
    for (const std::string& prefix : prefixes) own.addresses.push_back(*Prefix::parse(prefix));
    EXPECT_TRUE(end.open(own));
    return end;
  }
  Peer& join(End& node, const std::vector<std::string>& addresses, uint32_t mtu = kMaxMtu, bool carries = true) {
    Peer& peer = peers.emplace_back();
    peer.address = addresses.front();
    peer.cq = std::move(*device->create_cq({.entries = Lane::kMaxCompletions}));
    peer.lane = std::move(*Lane::create(*device, *pd, *peer.cq, next_lane++));
    Lane& here = lane_of(node);
    EXPECT_EQ(0, here.connect(path(), peer.lane->card()));
    EXPECT_EQ(0, peer.lane->connect(path(), here.card()));
    here.start_sending();
    peer.lane->start_sending();
    peer.link = &node.links.emplace_back();
    for (const std::string& address : addresses) peer.link->addresses.push_back(*address_from(address));
    peer.link->mtu = mtu;
    peer.link->takes_datagrams = true;
    peer.link->lanes = {&here};
    peer.link->traffic = &node.traffic.emplace_back();
    node.pump->call([&] {
      node.pump->attach(*peer.link);
      if (carries) node.pump->route_to(*peer.link);
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
      node.pump->call([] {});  // it has counted this one
      if (one.empty() || one == last) return taken;
      taken.push_back(std::move(one));
    }
  }
  static bool await_counts(const std::function<bool()>& holds, milliseconds patience = kPatience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!holds() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return holds();
  }
  /// The peer puts a record before the node that is none: its lane is over.
  static bool breaks(const Peer& peer) {
    if (peer.lane->reserve() == nullptr) return false;
    peer.lane->commit(kMaxFrameBytes + 1);
    peer.lane->flush();
    return true;
  }
  /// All that its kernel has given has been read.
  static void await_read(const End& node) {
    EXPECT_TRUE(await_counts([&] {
      pollfd unread{node.inner, POLLIN, 0};
      return ::poll(&unread, 1, 0) == 0;
    }));
    node.pump->call([] {});
  }
  void TearDown() override {
    ends.clear();  // they write into memory of the peers
    peers.clear();
    NetdevPump::TearDown();
  }

  std::deque<Peer> peers;
};

TEST_P(NetdevPumpRules, Deliver_WhatIsNoPacketOrNotForThisNode_IsMalformed) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  const Frame good = packet_of("10.77.0.2", "10.77.0.1", 100);
  Frame cut = good, longer = good;
  cut.resize(kHeader + 19);
  longer.push_back({});
  VirtioHeader outside;
  outside.flags = VirtioHeader::kNeedsChecksum;
  outside.csum_start = 119;
  outside.csum_offset = 6;
  const std::vector<Frame> bad = {
      Frame(good.begin(), good.begin() + 5),
      Frame(good.begin(), good.begin() + kHeader),
      cut,
      longer,
      with_header(good, outside),
      packet_of("10.77.0.2", "10.77.0.3", 100),
      packet_of("10.77.0.2", "10.77.0.2", 100),
  };
  for (const Frame& frame : bad) {
    const uint64_t before = peer.traffic().malformed.get();
    EXPECT_TRUE(delivered(node, peer, {frame}).empty());
    EXPECT_EQ(before + 1, peer.traffic().malformed.get()) << &frame - bad.data();
  }
  EXPECT_EQ(bad.size(), peer.traffic().received.get());  // the last ones
  EXPECT_EQ(0u, peer.traffic().wrong_source.get());
}

TEST_P(NetdevPumpRules, Deliver_SourceThatIsNotThePeers_IsDroppedAndCounted) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2", "fd77::2"});
  const std::vector<Frame> others = {
      packet_of("10.77.0.3", "10.77.0.1", 100), packet_of("10.77.0.1", "10.77.0.1", 100),
      packet_of("10.77.0.3", "224.0.0.5", 100), packet_of("10.77.0.3", "10.77.0.255", 100),
      packet_of("fd77::3", "fd77::1", 100),     packet_of("fd77::3", "ff02::1", 100),
      packet_of("fe80::1234", "fd77::1", 100),  packet_of("::", "fd77::1", 100),
      packet_of("::a4d:2", "fd77::1", 100),
  };
  for (const Frame& frame : others) {
    const uint64_t before = peer.traffic().wrong_source.get();
    EXPECT_TRUE(delivered(node, peer, {frame}).empty());
    EXPECT_EQ(before + 1, peer.traffic().wrong_source.get()) << &frame - others.data();
  }
  // A kernel that looks for others of its link does no wrong, and is not answered.
  EXPECT_TRUE(
      delivered(node, peer, {packet_of("fe80::1234", "ff02::2", 100), packet_of("::", "ff02::16", 100)}).empty());
  EXPECT_EQ(others.size(), peer.traffic().wrong_source.get());
  EXPECT_EQ(0u, peer.traffic().malformed.get());
}

TEST_P(NetdevPumpRules, Deliver_GroupsAndBroadcasts_AreForThisNode) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2", "fd77::2"});
  const std::vector<Frame> for_all = {
      packet_of("10.77.0.2", "10.77.0.255", 100), packet_of("10.77.0.2", "255.255.255.255", 100),
      packet_of("10.77.0.2", "224.0.0.251", 100), packet_of("fd77::2", "ff02::1", 100),
      packet_of("fd77::2", "fd77::1", 100),
  };
  EXPECT_EQ(for_all, delivered(node, peer, for_all));
  const std::vector<Frame> others = {
      packet_of("10.77.0.2", "10.77.1.255", 100), packet_of("10.77.0.2", "10.77.255.255", 100),
      packet_of("10.77.0.2", "10.77.0.0", 100),   packet_of("10.77.0.2", "240.0.0.1", 100),
      packet_of("fd77::2", "fd77::ffff", 100),
  };
  EXPECT_TRUE(delivered(node, peer, others).empty());
  EXPECT_EQ(others.size(), peer.traffic().malformed.get());
}

TEST_P(NetdevPumpRules, IsForAll_PrefixesOfTwoAddresses_HaveNoBroadcast) {
  End& node = make_node({"10.77.0.1/32", "10.78.0.2/31"});
  const Peer& peer = join(node, {"10.77.0.2"});
  // RFC 3021: both addresses are nodes'.
  EXPECT_TRUE(delivered(node, peer, {packet_of("10.77.0.2", "10.78.0.3", 100)}).empty());
  EXPECT_EQ(1u, peer.traffic().malformed.get());
  EXPECT_TRUE(arrived(node, peer, {packet_of("10.77.0.1", "10.78.0.3", 100)}).empty());
  EXPECT_EQ(1u, node.pump->unroutable());
}

TEST_P(NetdevPumpRules, Deliver_BytesAreThoseOfPacketsThatTheKernelTook) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  const Frame one = packet_of("10.77.0.2", "10.77.0.1", 100), other = packet_of("10.77.0.2", "10.77.0.1", 900);
  EXPECT_EQ((std::vector<Frame>{one, other}), delivered(node, peer, {one, other}));
  EXPECT_EQ(3u, peer.traffic().received.get());
  EXPECT_EQ(120u + 920u + 23u, peer.traffic().received_bytes.get());
  // Nobody takes from the interface: it is full some time, and what it refuses is not received.
  constexpr uint64_t kMany = 2000;
  for (uint64_t i = 0; i < kMany; ++i) ASSERT_TRUE(peer.put(other));
  const Traffic& traffic = peer.traffic();
  EXPECT_TRUE(await_counts([&] { return traffic.received.get() + traffic.refused.get() >= kMany + 3; }));
  node.pump->call([] {});
  EXPECT_EQ(kMany + 3, traffic.received.get() + traffic.refused.get());
  EXPECT_GT(traffic.refused.get(), 0u);
  EXPECT_EQ(120u + 23u + 920u * (traffic.received.get() - 2), traffic.received_bytes.get());
  uint64_t taken = 0;
  while (!node.take(milliseconds(0)).empty()) ++taken;
  EXPECT_EQ(traffic.received.get() - 3, taken);
}

TEST_P(NetdevPumpRules, Send_PacketLongerThanThePeersMtu_IsCutOrAnswered) {
  constexpr uint32_t kMtu = 1400;
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"}, kMtu);
  const Traffic& traffic = peer.traffic();
  const auto sends = [&](size_t payload, bool may_be_cut) {
    return arrived(node, peer, {packet_of("10.77.0.1", "10.77.0.2", payload, may_be_cut)});
  };
  EXPECT_EQ(1u, sends(kMtu - 20, false).size());
  EXPECT_EQ(0u, traffic.too_long.get());
  EXPECT_EQ(1u, sends(kMtu - 20, true).size());
  // One byte more: RFC 1191 with the peer's MTU.
  EXPECT_TRUE(sends(kMtu - 19, false).empty());
  EXPECT_EQ(1u, traffic.too_long.get());
  const Frame answer = node.take();
  ASSERT_GE(answer.size(), kHeader + 28);
  EXPECT_EQ(std::byte{kIcmpNumber}, answer[kHeader + 9]);
  EXPECT_EQ(0x0304u, at16(answer, kHeader + 20));
  EXPECT_EQ(kMtu, at16(answer, kHeader + 26));
  const std::vector<Frame> parts = sends(kMtu - 19, true);
  ASSERT_EQ(2u, parts.size());
  for (const Frame& part : parts) EXPECT_LE(part.size(), kHeader + kMtu);
  EXPECT_EQ(kHeader * 2 + 40 + kMtu - 19, parts[0].size() + parts[1].size());
  EXPECT_EQ(1u, traffic.too_long.get());
  EXPECT_TRUE(node.take(milliseconds(0)).empty());
}

TEST_P(NetdevPumpRules, Send_PacketThatIsCut_HasItsChecksumBefore) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"}, kMinMtu);
  VirtioHeader open;
  open.flags = VirtioHeader::kNeedsChecksum;
  open.csum_start = 20;
  open.csum_offset = 6;
  Frame sent = with_header(packet_of("10.77.0.1", "10.77.0.2", 2000, true), open);
  sent[kHeader + 26] = sent[kHeader + 27] = {};
  const std::vector<Frame> parts = arrived(node, peer, {sent});
  ASSERT_EQ(2u, parts.size());
  VirtioHeader header;
  for (const Frame& part : parts) {
    std::memcpy(&header, part.data(), sizeof header);
    EXPECT_EQ(0, header.flags);
  }
  Frame expected(sent.begin() + kHeader, sent.end());
  complete_checksum(open, expected);
  ASSERT_NE(0u, at16(expected, 26));
  EXPECT_EQ(at16(expected, 26), at16(parts[0], kHeader + 26));
}

TEST_P(NetdevPumpRules, Send_LargeSegment_IsJudgedByItsPackets) {
  constexpr uint16_t kMtu = 1400;
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"}, kMtu);
  const Frame fits = segment_of("10.77.0.1", "10.77.0.2", 5000, kMtu - 40);
  EXPECT_EQ(std::vector<Frame>{fits}, arrived(node, peer, {fits}));
  EXPECT_EQ(0u, peer.traffic().too_long.get());
  // What a kernel cuts into segments is not cut into fragments.
  for (const bool may_be_cut : {false, true}) {
    const uint64_t before = peer.traffic().too_long.get();
    EXPECT_TRUE(arrived(node, peer, {segment_of("10.77.0.1", "10.77.0.2", 5000, kMtu - 39, may_be_cut)}).empty());
    EXPECT_EQ(before + 1, peer.traffic().too_long.get()) << may_be_cut;
    const Frame answer = node.take();
    ASSERT_GE(answer.size(), kHeader + 28) << may_be_cut;
    EXPECT_EQ(0x0304u, at16(answer, kHeader + 20)) << may_be_cut;
  }
  // A header that does not fit its packet: nothing is made of it, and nobody is told.
  Frame wrong = segment_of("10.77.0.1", "10.77.0.2", 5000, kMtu);
  wrong[kHeader + 9] = std::byte{kUdpNumber};
  EXPECT_TRUE(arrived(node, peer, {wrong}).empty());
  EXPECT_EQ(3u, peer.traffic().too_long.get());
  EXPECT_TRUE(node.take(milliseconds(0)).empty());
}

TEST_P(NetdevPumpRules, Send_WhatIsNoPacket_GoesNowhere) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  const Frame good = packet_of("10.77.0.1", "10.77.0.2", 100);
  Frame longer = good, other_version = good;
  longer.push_back({});
  other_version[kHeader] = std::byte{0x55};
  EXPECT_TRUE(arrived(node, peer,
                      {Frame(good.begin(), good.begin() + 5), Frame(good.begin(), good.begin() + kHeader),
                       Frame(good.begin(), good.end() - 1), longer, other_version})
                  .empty());
  EXPECT_EQ(1u, peer.traffic().sent.get());
  EXPECT_EQ(0u, node.pump->unroutable());
}

TEST_P(NetdevPumpRules, SendToAll_PeerThatDoesNotTakeIt_GoesWithoutAndIsCounted) {
  End& node = make_node();
  const Peer& small = join(node, {"10.77.0.3"}, 1400);
  const Peer& large = join(node, {"10.77.0.2"});
  const Peer& early = join(node, {"10.77.0.4"}, kMaxMtu, false);
  const Frame fits = packet_of("10.77.0.1", "10.77.0.255", 1380), longer = packet_of("10.77.0.1", "10.77.0.255", 1381);
  const Frame limited = packet_of("10.77.0.1", "255.255.255.255", 10), group = packet_of("fd77::1", "ff02::1", 10);
  const std::vector<Frame> all = {fits, longer, limited, group};
  EXPECT_EQ(all, arrived(node, large, all));
  EXPECT_EQ((std::vector<Frame>{fits, limited, group}), arrived(node, small, {}));
  EXPECT_EQ(0u, large.traffic().no_room.get());
  EXPECT_EQ(1u, small.traffic().no_room.get());
  EXPECT_EQ(5u, large.traffic().sent.get());
  EXPECT_EQ(4u, small.traffic().sent.get());
  // A header that does not fit its packet is for nobody.
  EXPECT_TRUE(arrived(node, large, {segment_of("10.77.0.1", "224.0.0.5", 100, 0)}).empty());
  EXPECT_EQ(1u, node.pump->unroutable());
  // Where no packets go yet, none of these does.
  node.pump->call([&] { node.pump->route_to(*early.link); });
  EXPECT_TRUE(arrived(node, early, {}).empty());
  EXPECT_EQ(0u, early.traffic().no_room.get());
}

TEST_P(NetdevPumpRules, Detach_PeersAddresses_AreNobodysAgain) {
  End& node = make_node();
  const Peer& gone = join(node, {"10.77.0.2", "10.77.0.22"});
  const Peer& other = join(node, {"10.77.0.3"});
  EXPECT_EQ(1u, arrived(node, gone, {packet_of("10.77.0.1", "10.77.0.22", 100)}).size());
  node.pump->call([&] { node.pump->detach(*gone.link); });
  const Frame to_all = packet_of("10.77.0.1", "10.77.0.255", 10);
  EXPECT_EQ(std::vector<Frame>{to_all},
            arrived(node, other,
                    {packet_of("10.77.0.1", "10.77.0.2", 100), packet_of("10.77.0.1", "10.77.0.22", 100), to_all}));
  EXPECT_EQ(2u, node.pump->unroutable());
  EXPECT_EQ(2u, gone.traffic().sent.get());
  EXPECT_TRUE(gone.put(packet_of("10.77.0.2", "10.77.0.1", 100)));
  EXPECT_EQ(2u, [&] {  // the answers about the two, and nothing of the one that is gone
    uint64_t answers = 0;
    while (!node.take(milliseconds(0)).empty()) ++answers;
    return answers;
  }());
  EXPECT_EQ(0u, gone.traffic().received.get());
}

TEST_P(NetdevPumpRules, Answer_AboutPacketsForNobody_Is100InASecondAtMost) {
  End& node = make_node();
  constexpr uint64_t kPackets = 250, kMost = 100;
  uint64_t answers = 0;
  const auto began = std::chrono::steady_clock::now();
  for (uint64_t i = 1; i <= kPackets; ++i) {
    node.give(packet_of("10.77.0.1", "10.77.0.9", 100));
    while (node.pump->unroutable() < i && std::chrono::steady_clock::now() < began + kPatience)
      std::this_thread::yield();
    node.pump->call([] {});  // it has answered
    while (!node.take(milliseconds(0)).empty()) ++answers;
  }
  const auto took = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began);
  EXPECT_EQ(kPackets, node.pump->unroutable());
  EXPECT_GE(answers, kMost);
  EXPECT_LE(answers, kMost * static_cast<uint64_t>(took.count() + 1));
}

TEST_P(NetdevPumpRules, Answer_AfterTheHundredthOfASecond_GoesOnInTheNextOne) {
  End& node = make_node();
  constexpr int kMost = 100;
  int answers = 0;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (answers <= kMost && std::chrono::steady_clock::now() < until) {
    node.give(packet_of("10.77.0.1", "10.77.0.9", 100));
    if (!node.take(milliseconds(10)).empty()) ++answers;
  }
  EXPECT_GT(answers, kMost);
}

TEST_P(NetdevPumpRules, PutAside_PeerReadsWhileThePumpSleeps_GetsTheRestThoughNothingElseComes) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  join(node, {"10.77.0.3"});
  const Frame frame = packet_of("10.77.0.1", "10.77.0.2", 60000);
  // One more than the ring takes: so few put aside do not keep the pump from its interface.
  uint64_t given = 0;
  do {
    node.give(frame);
    await_read(node);
    ++given;
  } while (peer.traffic().sent.get() == given);
  // The pump asks for room before it sleeps.
  const auto* const words = reinterpret_cast<const RingWords*>(peer.lane->card().address);
  EXPECT_TRUE(await_counts([&] { return words->waits.load() != 0; }));
  for (uint64_t taken = 0; taken < given; ++taken) ASSERT_EQ(frame.size(), peer.take().size()) << taken;
  EXPECT_EQ(0u, peer.traffic().no_room.get());
}

TEST_P(NetdevPumpRules, PutAside_WhatIsSentLater_KeepsItsOrderAndGivesItsRoomBack) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  join(node, {"10.77.0.3"});
  // A ring and most of what may be put aside, several times: the peer reads only in between.
  constexpr size_t kPayload = 60000;
  constexpr uint64_t kFrames = 140;
  uint64_t sent = 0;
  for (int round = 0; round < 3; ++round) {
    Frame frame = packet_of("10.77.0.1", "10.77.0.2", kPayload);
    for (uint64_t i = 0; i < kFrames; ++i) {
      frame.back() = static_cast<std::byte>(i);
      node.give(frame);
    }
    for (uint64_t i = 0; i < kFrames; ++i) {
      // All of them have been read before the first one is taken.
      const auto until = std::chrono::steady_clock::now() + kPatience;
      pollfd unread{node.inner, POLLIN, 0};
      while (i == 0 && ::poll(&unread, 1, 0) == 1 && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
      const Frame taken = peer.take();
      ASSERT_EQ(frame.size(), taken.size()) << round << " " << i;
      ASSERT_EQ(static_cast<std::byte>(i), taken.back()) << round << " " << i;
    }
    sent += kFrames;
    node.pump->call([] {});
    EXPECT_EQ(sent, peer.traffic().sent.get());
    EXPECT_EQ(sent * (kPayload + 20), peer.traffic().sent_bytes.get());
  }
  EXPECT_EQ(0u, peer.traffic().no_room.get());
}

/// While this lives, the pump waits in its read for the next frame of the interface, and does nothing else.
class ReadThatWaits {
 public:
  ReadThatWaits(const End& node, Frame last) : node_(node), last_(std::move(last)) { set(0); }
  ~ReadThatWaits() {
    set(O_NONBLOCK);
    node_.give(last_);  // the read that waits returns
  }
  ReadThatWaits(const ReadThatWaits&) = delete;
  ReadThatWaits& operator=(const ReadThatWaits&) = delete;

 private:
  void set(int flag) const { EXPECT_EQ(0, fcntl(node_.inner, F_SETFL, flag)); }

  const End& node_;
  const Frame last_;
};

TEST_P(NetdevPumpRules, PutAside_RoomThatComesBetweenTwoPackets_IsLeftToThoseBefore) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  const Peer& other = join(node, {"10.77.0.3"});
  const Frame to_other = packet_of("10.77.0.1", "10.77.0.3", 100);
  uint8_t given = 0;
  const auto give = [&] {
    Frame frame = packet_of("10.77.0.1", "10.77.0.2", 60000);
    frame.back() = std::byte{++given};
    node.give(frame);
  };
  // Until one is put aside.
  do {
    give();
    await_read(node);
  } while (peer.traffic().sent.get() == given);
  uint8_t taken = 0;
  const auto take_to = [&](int last) {
    while (taken < last && !HasFailure()) {
      const Frame next = peer.take();
      EXPECT_EQ(std::byte{++taken}, next.empty() ? std::byte{} : next.back());
    }
  };
  {
    const ReadThatWaits read(node, to_other);
    // One more is put aside. When the other peer has its packet, the pump reads the next one, with no look at those
    // that are aside.
    give();
    node.give(to_other);
    ASSERT_EQ(to_other, other.take());
    take_to(given - 2);
    give();
    node.give(to_other);
    ASSERT_EQ(to_other, other.take());
  }
  take_to(given);
  EXPECT_EQ(0u, peer.traffic().no_room.get());
}

TEST_P(NetdevPumpRules, PutAside_MoreThanAPeerMayHave_IsDroppedAndCounted) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  join(node, {"10.77.0.3"});
  constexpr uint64_t kFrames = 300, kMostAside = uint64_t{8} << 20;
  const Frame frame = packet_of("10.77.0.1", "10.77.0.2", 60000);
  for (uint64_t i = 0; i < kFrames; ++i) node.give(frame);
  const Traffic& traffic = peer.traffic();
  await_read(node);
  EXPECT_GT(traffic.no_room.get(), 0u);
  const uint64_t before = traffic.sent.get();  // what the ring takes
  EXPECT_LE(before * record_bytes(frame.size()), kRingBytes);
  for (uint64_t taken = 0; taken + traffic.no_room.get() < kFrames; ++taken) {
    const Frame next = peer.take();
    if (next.empty()) break;
    EXPECT_EQ(frame.size(), next.size());
  }
  node.pump->call([] {});
  EXPECT_EQ(kFrames, traffic.sent.get() + traffic.no_room.get());
  EXPECT_LE((traffic.sent.get() - before) * frame.size(), kMostAside);
}

TEST_P(NetdevPumpRules, Send_PacketThatItsPeerChangesMeanwhile_IsCutAsItWasLookedAt) {
  constexpr uint64_t kPackets = 400;
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"}, kMinMtu);
  const Frame sent = packet_of("10.77.0.1", "10.77.0.2", 2000, true);
  const std::vector<Frame> parts = arrived(node, peer, {sent});
  ASSERT_EQ(2u, parts.size());
  // Each packet is read to where the next frame of the peer's ring lies, which does not come to the ring's end.
  static_assert((kPackets + 2) * 2 * record_bytes(kHeader + kMinMtu) < kRingBytes - kMaxRecordBytes);
  auto* const words = reinterpret_cast<RingWords*>(peer.lane->card().address);
  auto* const ring = reinterpret_cast<uint8_t*>(words + 1);
  std::atomic<uint8_t*> first{nullptr};
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    while (!stop)
      if (uint8_t* const at = first; at != nullptr) change_to_and_fro(at);
  });
  for (uint64_t i = 0; i < kPackets && !HasFailure(); ++i) {
    first = ring + words->tail.load() + sizeof(Record) + kHeader;
    node.give(sent);
    await_read(node);
    first = nullptr;
    peer.turn();
    std::vector<Frame> taken;
    while (const auto frame = peer.lane->next()) {
      taken.emplace_back(frame->begin(), frame->end());
      peer.lane->done();
    }
    peer.lane->give_back();
    if (taken.empty()) continue;  // it was none when it was looked at
    EXPECT_EQ(2u, taken.size()) << i;
    EXPECT_EQ(parts[1], taken.back()) << i;  // the first one lies where the changes are made
  }
  stop = true;
  changes.join();
}

TEST_P(NetdevPumpRules, OnFailure_LaneThatFailsBesideAFailedOne_IsToldTooAndOnce) {
  End& node = make_node();
  const Peer& one = join(node, {"10.77.0.2"});
  const Peer& other = join(node, {"10.77.0.3"});
  const Peer& third = join(node, {"10.77.0.4"});
  // Nobody takes the failed ones away.
  int failures = 0;
  for (const Peer* peer : {&one, &other}) {
    EXPECT_TRUE(breaks(*peer));
    ++failures;
    EXPECT_TRUE(await_counts([&] { return node.failures >= failures; })) << failures;
  }
  const Frame passes = packet_of("10.77.0.4", "10.77.0.1", 100);
  EXPECT_EQ(std::vector<Frame>{passes}, delivered(node, third, {passes}));
  EXPECT_EQ(2, node.failures);
}

TEST_P(NetdevPumpRules, OnFailure_FirstLaneOfAPeerWhoseSecondIsWell_IsTold) {
  End& node = make_node();
  const Peer& first = join(node, {"10.77.0.2"});
  const Peer& second = join(node, {"10.77.0.3"});
  node.pump->call([&] {
    node.pump->detach(*second.link);
    first.link->lanes.push_back(second.link->lanes.front());
  });
  EXPECT_TRUE(breaks(first));
  EXPECT_TRUE(await_counts([&] { return node.failures == 1; }));
}

TEST_P(NetdevPumpRules, Sleep_CompletionThatCameBeforeTheQueueWasArmed_IsTakenFirst) {
  // Frames that are a batch and a stream, after which the pump sleeps as soon as there is nothing to do; and behind
  // them a record that breaks the lane, so that the test is called in between.
  constexpr uint32_t kFrames = 32, kBytes = 1000, kRecordBytes = record_bytes(kBytes);
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  be_hostile_to(node);
  ASSERT_TRUE(node.lanes.back()->is_mapped());
  Link& broken = node.links.back();
  std::promise<void> called;
  node.pump->call([&] {
    node.on_failure = [&] {
      node.pump->detach(broken);
      peer.lane->probe();
      // An event that tells of it is over too.
      while (node.pump->cq().channel()->wait()) {
      }
      called.set_value();
    };
    std::vector<std::byte> ring(kFrames * kRecordBytes + sizeof(Record));
    for (uint32_t i = 0; i <= kFrames; ++i) {
      const Record record{i < kFrames ? kBytes : kMaxFrameBytes + 1, 0};
      std::memcpy(&ring[i * kRecordBytes], &record, sizeof record);
    }
    hostile->write(sizeof(RingWords), ring.data(), static_cast<uint32_t>(ring.size()));
    const uint64_t tail = (kFrames + 1) * kRecordBytes;
    hostile->write(0, &tail, sizeof tail);
  });
  EXPECT_EQ(std::future_status::ready, called.get_future().wait_for(kPatience));
  EXPECT_TRUE(await_counts(
      [&] {
        peer.turn();
        return peer.lane->round_trip_ns() != 0;
      },
      kPatience / 2))
      << "the pump sleeps over a question";
  node.pump->call([&] { node.on_failure = nullptr; });
}

/// By memory and by packets.
class NetdevPumpLanes : public NetdevPumpRules {};

TEST_P(NetdevPumpLanes, Completions_OfManyLanesWhileThePumpIsAway_AllHaveRoom) {
  // A lane has 512 receives. A queue that is made for one lane takes 2048 completions.
  constexpr size_t kPeers = 5, kQuestions = 500;
  static_assert(kPeers * kQuestions > 2 * Lane::kMaxCompletions);
  End& node = make_node();
  for (size_t i = 0; i < kPeers; ++i) join(node, {"10.77.0." + std::to_string(2 + i)});
  size_t sent = 0, answered = 0;
  const auto turn = [&] {
    bool broken = false;
    for (const Peer& peer : peers) {
      WorkCompletion done;
      while (peer.cq->poll(&done, 1) == 1) {
        ++((done.wc_flags & wc_flag::kWithImm) != 0 ? answered : sent);
        peer.lane->on_completion(done);
      }
      broken |= peer.lane->error() != 0;
    }
    return broken;
  };
  std::promise<void> held, go;
  std::thread holds([&] {
    node.pump->call([&] {
      held.set_value();
      go.get_future().wait();
    });
  });
  held.get_future().wait();
  for (const Peer& peer : peers) {
    for (size_t i = 0; i < kQuestions; ++i) {
      peer.lane->probe();
      turn();
    }
  }
  EXPECT_TRUE(await_counts([&] { return turn() || sent == kPeers * kQuestions; }));
  EXPECT_EQ(0u, answered);
  go.set_value();
  holds.join();
  EXPECT_TRUE(await_counts([&] { return turn() || answered == kPeers * kQuestions; }));
  EXPECT_EQ(kPeers * kQuestions, answered);
  for (const Peer& peer : peers) EXPECT_EQ(0, peer.lane->error());
  node.pump->call([&] {
    for (const auto& lane : node.lanes) EXPECT_EQ(0, lane->error());
  });
  EXPECT_EQ(0, node.failures);
}

TEST_P(NetdevPumpRules, Call_ToAStoppedLoop_IsNotRunLater) {
  End& node = make();
  node.pump->stop();
  EXPECT_FALSE(node.pump->call([] { ADD_FAILURE() << "it has stopped"; }));
  node.pump->post([] { ADD_FAILURE() << "it has stopped"; });
  bool done = false;
  node.pump->insist([&] { done = true; });
  EXPECT_TRUE(done) << "what it has to let go of";
}

TEST_P(NetdevPumpRules, Post_ToAPumpThatIsBusy_IsNotWaitedForAndComesBeforeTheNextCall) {
  End& node = make();
  std::atomic<bool> is_busy{false}, may_go_on{false}, posted_ran{false};
  std::thread holds([&] {
    node.pump->call([&] {
      is_busy = true;
      is_busy.notify_one();
      may_go_on.wait(false);
    });
  });
  is_busy.wait(false);
  EXPECT_TRUE(node.pump->post([&] { posted_ran = true; }));
  EXPECT_FALSE(posted_ran);
  may_go_on = true;
  may_go_on.notify_one();
  EXPECT_TRUE(node.pump->call([&] { EXPECT_TRUE(posted_ran); }));
  holds.join();
}

TEST_P(NetdevPumpRules, QueueAtItsEnd_IsToldOnceAndWatchedNoMore) {
  // The pump reads and watches one end of a pipe here, whose end is told without anything to read, as TUN's is.
  int ends[2];
  ASSERT_EQ(0, pipe2(ends, O_CLOEXEC | O_NONBLOCK));
  const base::UniqueFd reads(ends[0]);
  base::UniqueFd writes(ends[1]);
  std::atomic<int> losses{0};
  auto pump = Pump::start(*device, reads.get(), Own{{address_of(1)}, kMaxMtu},
                          {{}, [&](int error) { losses += error == ENODEV ? 1 : 100; }});
  ASSERT_TRUE(pump) << pump.error().what();
  const auto turns_of = [&] {
    int turns = 0;
    EXPECT_TRUE((*pump)->call([&] { turns = losses; }));
    return turns;
  };
  EXPECT_EQ(0, turns_of());
  writes.reset();
  ASSERT_TRUE(nupa::test::soon([&] { return losses != 0; }));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(1, turns_of());
}

INSTANTIATE_TEST_SUITE_P(Ways, NetdevPumpLanes, ::testing::Values("shm", "roce"),
                         [](const auto& way) { return std::string(way.param); });
INSTANTIATE_TEST_SUITE_P(Ways, NetdevPumpRules, ::testing::Values("shm"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace nupa::netdev
