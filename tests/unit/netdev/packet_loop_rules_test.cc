// SPDX-License-Identifier: Apache-2.0
/// Which packets the packet loop delivers, cuts, answers or drops.
#include <fcntl.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "packet_loop_fixture.h"
#include "packet_loop_rules.h"

namespace nupa::netdev {
namespace {

using namespace packet_loop_test;

uint32_t at16(const Frame& frame, size_t at) {
  return std::to_integer<uint32_t>(frame[at]) << 8 | std::to_integer<uint32_t>(frame[at + 1]);
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

TEST_P(NetdevPacketLoopRules, Deliver_InvalidPacketOrOfAnotherNode_IsMalformed) {
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

TEST_P(NetdevPacketLoopRules, Deliver_SourceThatIsNotThePeers_IsDroppedAndCounted) {
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

TEST_P(NetdevPacketLoopRules, Deliver_GroupsAndBroadcasts_AreForThisNode) {
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

TEST_P(NetdevPacketLoopRules, IsForAll_PrefixesOfTwoAddresses_HaveNoBroadcast) {
  End& node = make_node({"10.77.0.1/32", "10.78.0.2/31"});
  const Peer& peer = join(node, {"10.77.0.2"});
  // RFC 3021: both addresses are nodes'.
  EXPECT_TRUE(delivered(node, peer, {packet_of("10.77.0.2", "10.78.0.3", 100)}).empty());
  EXPECT_EQ(1u, peer.traffic().malformed.get());
  EXPECT_TRUE(arrived(node, peer, {packet_of("10.77.0.1", "10.78.0.3", 100)}).empty());
  EXPECT_EQ(1u, node.packet_loop->unroutable());
}

TEST_P(NetdevPacketLoopRules, Deliver_BytesCounter_CountsPacketsThatTheKernelTook) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  const Frame one = packet_of("10.77.0.2", "10.77.0.1", 100), other = packet_of("10.77.0.2", "10.77.0.1", 900);
  EXPECT_EQ((std::vector<Frame>{one, other}), delivered(node, peer, {one, other}));
  EXPECT_EQ(3u, peer.traffic().received.get());
  EXPECT_EQ(120u + 920u + 23u, peer.traffic().received_bytes.get());
  // Nobody takes from the interface: it is full some time, and what it refuses is not received.
  constexpr uint64_t kMany = 2000;
  for (uint64_t i = 0; i < kMany; ++i) ASSERT_TRUE(peer.put(other));
  const LinkStatistics& traffic = peer.traffic();
  EXPECT_TRUE(await_counts([&] { return traffic.received.get() + traffic.refused.get() >= kMany + 3; }));
  node.packet_loop->call([] {});
  EXPECT_EQ(kMany + 3, traffic.received.get() + traffic.refused.get());
  EXPECT_GT(traffic.refused.get(), 0u);
  EXPECT_EQ(120u + 23u + 920u * (traffic.received.get() - 2), traffic.received_bytes.get());
  uint64_t taken = 0;
  while (!node.take(milliseconds(0)).empty()) ++taken;
  EXPECT_EQ(traffic.received.get() - 3, taken);
}

TEST_P(NetdevPacketLoopRules, Send_PacketLongerThanThePeersMtu_IsCutOrAnswered) {
  constexpr uint32_t kMtu = 1400;
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"}, kMtu);
  const LinkStatistics& traffic = peer.traffic();
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

TEST_P(NetdevPacketLoopRules, Send_FragmentedPacket_HasItsChecksumBefore) {
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

TEST_P(NetdevPacketLoopRules, Send_LargeSegment_IsJudgedByItsPackets) {
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

TEST_P(NetdevPacketLoopRules, Send_InvalidPacket_IsNotSent) {
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
  EXPECT_EQ(0u, node.packet_loop->unroutable());
}

TEST_P(NetdevPacketLoopRules, SendToAll_PeerThatDoesNotTakeIt_GoesWithoutAndIsCounted) {
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
  EXPECT_EQ(1u, node.packet_loop->unroutable());
  // Where no packets go yet, none of these does.
  node.packet_loop->call([&] { node.packet_loop->route_to(*early.link); });
  EXPECT_TRUE(arrived(node, early, {}).empty());
  EXPECT_EQ(0u, early.traffic().no_room.get());
}

TEST_P(NetdevPacketLoopRules, Detach_PeersAddresses_HaveNoPeer) {
  End& node = make_node();
  const Peer& gone = join(node, {"10.77.0.2", "10.77.0.22"});
  const Peer& other = join(node, {"10.77.0.3"});
  EXPECT_EQ(1u, arrived(node, gone, {packet_of("10.77.0.1", "10.77.0.22", 100)}).size());
  node.packet_loop->call([&] { node.packet_loop->detach(*gone.link); });
  const Frame to_all = packet_of("10.77.0.1", "10.77.0.255", 10);
  EXPECT_EQ(std::vector<Frame>{to_all},
            arrived(node, other,
                    {packet_of("10.77.0.1", "10.77.0.2", 100), packet_of("10.77.0.1", "10.77.0.22", 100), to_all}));
  EXPECT_EQ(2u, node.packet_loop->unroutable());
  EXPECT_EQ(2u, gone.traffic().sent.get());
  EXPECT_TRUE(gone.put(packet_of("10.77.0.2", "10.77.0.1", 100)));
  EXPECT_EQ(2u, [&] {  // the answers about the two, and nothing of the one that is gone
    uint64_t answers = 0;
    while (!node.take(milliseconds(0)).empty()) ++answers;
    return answers;
  }());
  EXPECT_EQ(0u, gone.traffic().received.get());
}

TEST_P(NetdevPacketLoopRules, Answer_PacketsWithoutAPeer_AreAnswered100TimesASecondAtMost) {
  End& node = make_node();
  constexpr uint64_t kPackets = 250, kMost = 100;
  uint64_t answers = 0;
  const auto began = std::chrono::steady_clock::now();
  for (uint64_t i = 1; i <= kPackets; ++i) {
    node.give(packet_of("10.77.0.1", "10.77.0.9", 100));
    while (node.packet_loop->unroutable() < i && std::chrono::steady_clock::now() < began + kTimeout)
      std::this_thread::yield();
    node.packet_loop->call([] {});  // it has answered
    while (!node.take(milliseconds(0)).empty()) ++answers;
  }
  const auto took = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began);
  EXPECT_EQ(kPackets, node.packet_loop->unroutable());
  EXPECT_GE(answers, kMost);
  EXPECT_LE(answers, kMost * static_cast<uint64_t>(took.count() + 1));
}

TEST_P(NetdevPacketLoopRules, Answer_AfterTheHundredthOfASecond_GoesOnInTheNextOne) {
  End& node = make_node();
  constexpr int kMost = 100;
  int answers = 0;
  const auto until = std::chrono::steady_clock::now() + kTimeout;
  while (answers <= kMost && std::chrono::steady_clock::now() < until) {
    node.give(packet_of("10.77.0.1", "10.77.0.9", 100));
    if (!node.take(milliseconds(10)).empty()) ++answers;
  }
  EXPECT_GT(answers, kMost);
}

TEST_P(NetdevPacketLoopRules, Send_PacketThatItsPeerChangesMeanwhile_IsCutAsItWasLookedAt) {
  constexpr uint64_t kPackets = 400;
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"}, kMinMtu);
  const Frame sent = packet_of("10.77.0.1", "10.77.0.2", 2000, true);
  const std::vector<Frame> parts = arrived(node, peer, {sent});
  ASSERT_EQ(2u, parts.size());
  // Each packet is read to where the next frame of the peer's ring lies, which does not come to the ring's end.
  static_assert((kPackets + 2) * 2 * record_bytes(kHeader + kMinMtu) < kRingBytes - kMaxRecordBytes);
  auto* const words = reinterpret_cast<RingWords*>(peer.channel->info().address);
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
    while (const auto frame = peer.channel->next()) {
      taken.emplace_back(frame->begin(), frame->end());
      peer.channel->done();
    }
    peer.channel->give_back();
    if (taken.empty()) continue;  // it was none when it was looked at
    EXPECT_EQ(2u, taken.size()) << i;
    EXPECT_EQ(parts[1], taken.back()) << i;  // the first one lies where the changes are made
  }
  stop = true;
  changes.join();
}

}  // namespace
}  // namespace nupa::netdev
