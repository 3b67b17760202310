// SPDX-License-Identifier: Apache-2.0
/// Tests of the bytes that a transmit batch sends, and of the use of a socket for one peer.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_fault.h"
#include "transport/roce/port/transmit_batch.h"
#include "transport/roce/port/peer_socket.h"
#include "transport/roce/port/port.h"

namespace nupa::roce {
namespace {

constexpr Gid kBurstHost{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
constexpr uint8_t kBurstSend = opcode_of(Service::kRc, Operation::kSendOnly);
constexpr uint32_t kBurstBuffer = 1 << 18;

/// A datagram as it came.
struct BurstDatagram {
  std::vector<std::byte> bytes;
  uint32_t position;  ///< within its message

  uint32_t crc() const { return load_icrc(bytes.data() + bytes.size() - kIcrcBytes); }
  std::string payload() const {
    Packet packet;
    if (!decode(bytes.data(), static_cast<uint32_t>(bytes.size()), &packet)) return "no packet";
    return {reinterpret_cast<const char*>(packet.payload), packet.payload_length};
  }
};

class RoceTransmitBatch : public ::testing::Test {
 protected:
  RoceTransmitBatch() {
    auto from = net::UdpSocket::open(0, kBurstBuffer);
    EXPECT_TRUE(from);
    sockets.push_back(std::move(*from));
    for (size_t path = 0; path < far.size(); ++path) {
      auto opened = net::UdpSocket::open(0, kBurstBuffer);
      EXPECT_TRUE(opened);
      far[path].emplace(std::move(*opened));
      ways[path].place = path + 1;
      ways[path].to = {kBurstHost, far[path]->port(), 0};
      ways[path].from = kBurstHost;
    }
    batch = std::make_unique<TransmitBatch>(sockets);
    batch->aim(ways.data());
  }

  static Packet packet(uint8_t opcode, uint32_t psn, uint32_t bytes = 0) {
    Packet made;
    made.opcode = opcode;
    made.mark = kNupaMark;
    made.dest_qpn = 0x1105;
    made.psn = psn;
    made.payload_length = bytes;
    return made;
  }
  Sent send(const void* data, uint32_t length, uint8_t path = 0, uint32_t psn = 1) {
    const Fragment fragment{static_cast<const std::byte*>(data), length};
    return batch->send(path, packet(kBurstSend, psn, length), &fragment, 1);
  }
  Sent send_text(const std::string& text, uint8_t path = 0) {
    return send(text.data(), static_cast<uint32_t>(text.size()), path);
  }
  Sent acknowledge(uint32_t psn, uint8_t path = 0) { return batch->send(path, packet(kSelectiveAck, psn), nullptr, 0); }

  /// Takes what has come to the end of a path. Over the loopback interface all has, once it was sent.
  std::vector<BurstDatagram> take(uint8_t path = 0) {
    std::vector<BurstDatagram> came;
    std::vector<std::byte> buffer(net::UdpSocket::kMaxReceive);
    net::UdpSocket::Received received;
    while (far[path]->receive(buffer.data(), net::UdpSocket::kMaxReceive, &received))
      for (uint32_t at = 0, position = 0; at < received.length; at += received.segment, ++position) {
        const auto first = buffer.begin() + at;
        came.push_back({{first, first + std::min(received.segment, received.length - at)}, position});
      }
    return came;
  }
  /// The CRC that a datagram on a path should have.
  uint32_t right_crc(const BurstDatagram& datagram, uint8_t path = 0) const {
    const Route route{kBurstHost, kBurstHost, sockets[0].port(), far[path]->port()};
    const auto length = static_cast<uint32_t>(datagram.bytes.size());
    return icrc_of_state(icrc_of_headers(route, static_cast<uint16_t>(datagram.position), length, datagram.bytes.data(),
                                         length - kIcrcBytes));
  }

  std::vector<net::UdpSocket> sockets;
  std::array<std::optional<net::UdpSocket>, 2> far;
  std::array<Destination, 2> ways;
  std::unique_ptr<TransmitBatch> batch;
};

TEST_F(RoceTransmitBatch, Pad_OfAShortPayload_IsZeros) {  // nothing of an earlier message goes to another peer
  send_text(std::string(64, 'x'));
  batch->flush();
  take();
  for (const uint32_t length : {1u, 2u, 3u, 4u}) {
    send_text(std::string(length, 'y'));
    batch->flush();
    const auto came = take();
    ASSERT_EQ(came.size(), 1u);
    const std::vector<std::byte>& bytes = came[0].bytes;
    ASSERT_EQ(bytes.size(), kBthBytes + 4 + kIcrcBytes);
    for (uint32_t i = length; i < 4; ++i) EXPECT_EQ(bytes[kBthBytes + i], std::byte{0}) << length;
    EXPECT_EQ(came[0].payload(), std::string(length, 'y'));
  }
}

TEST_F(RoceTransmitBatch,
       Send_SeveralPackets_EachHasTheCrcOfItsPosition) {  // annex A17.3.3: IPv4 identifications count
  for (const uint32_t length : {5u, 300u})
    for (int i = 0; i < 3; ++i) EXPECT_EQ(send_text(std::string(length, static_cast<char>('a' + i))), Sent::kYes);
  batch->flush();
  const auto came = take();
  ASSERT_EQ(came.size(), 6u);
  for (size_t i = 0; i < came.size(); ++i) {
    EXPECT_EQ(came[i].crc(), right_crc(came[i])) << i;
    EXPECT_EQ(came[i].payload(), std::string(i < 3 ? 5 : 300, static_cast<char>('a' + i % 3)));
  }
}

TEST_F(RoceTransmitBatch, Send_PeerWithoutCrc_HasZeros) {
  ways[0].unchecked = true;
  const std::string small(5, 's'), large(3001, 'l');
  send_text(small);
  send_text(large);
  batch->flush();
  const auto came = take();
  ASSERT_EQ(came.size(), 2u);
  for (const BurstDatagram& datagram : came) EXPECT_EQ(datagram.crc(), 0u);
  EXPECT_EQ(came[0].payload(), small);
  EXPECT_EQ(came[1].payload(), large);
}

TEST_F(RoceTransmitBatch, Send_NullRegion_SendsZeros) {
  for (const bool unchecked : {false, true}) {
    ways[0].unchecked = unchecked;
    for (const uint32_t length : {8u, 1024u}) {
      EXPECT_EQ(send(nullptr, length), Sent::kYes);
      batch->flush();
      const auto came = take();
      ASSERT_EQ(came.size(), 1u);
      EXPECT_EQ(came[0].payload(), std::string(length, '\0')) << unchecked;
    }
  }
}

TEST_F(RoceTransmitBatch, Send_UnreadablePayload_IsRefusedWithAndWithoutCrc) {
  ASSERT_EQ(base::watch_memory_faults(), 0);
  constexpr size_t kPage = 4096;
  auto* const memory =
      static_cast<std::byte*>(mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 'm', 3 * kPage);
  ASSERT_EQ(mprotect(memory + kPage, kPage, PROT_NONE), 0);
  for (const bool unchecked : {false, true}) {
    ways[0].unchecked = unchecked;
    EXPECT_EQ(send(memory + kPage, 4096), Sent::kUnreadable) << unchecked;
    EXPECT_EQ(send(memory + kPage - 4000, 4001), Sent::kUnreadable) << "only its last byte: " << unchecked;
    EXPECT_EQ(send(memory + 2 * kPage - 1, 4096), Sent::kUnreadable) << "only its first byte: " << unchecked;
    EXPECT_EQ(send(memory + kPage - 8, 8), Sent::kYes) << unchecked;
    const Fragment parts[] = {{memory, 4000}, {memory + kPage, 8}};
    EXPECT_EQ(batch->send(0, packet(kBurstSend, 1, 4008), parts, 2), Sent::kUnreadable) << unchecked;
    EXPECT_EQ(send(memory, 4096), Sent::kYes) << unchecked;
    EXPECT_EQ(send(memory + 2 * kPage, 4096), Sent::kYes) << unchecked;
    batch->flush();
    const auto came = take();
    ASSERT_EQ(came.size(), 3u) << unchecked;
    EXPECT_EQ(came[0].payload(), std::string(8, 'm'));
    EXPECT_EQ(came[1].payload(), std::string(4096, 'm'));
    EXPECT_EQ(came[2].payload(), std::string(4096, 'm'));
  }
  EXPECT_EQ(batch->refused(), 0u);
  munmap(memory, 3 * kPage);
}

TEST_F(RoceTransmitBatch, Send_PayloadOfSeveralParts_IsContiguous) {
  const std::string first(300, 'a'), second(17, 'b');
  const Fragment parts[] = {{reinterpret_cast<const std::byte*>(first.data()), 300},
                            {reinterpret_cast<const std::byte*>(second.data()), 17}};
  for (const bool unchecked : {false, true}) {
    ways[0].unchecked = unchecked;
    EXPECT_EQ(batch->send(0, packet(kBurstSend, 1, 317), parts, 2), Sent::kYes);
    batch->flush();
    const auto came = take();
    ASSERT_EQ(came.size(), 1u);
    EXPECT_EQ(came[0].payload(), first + second);
  }
}

TEST_F(RoceTransmitBatch, Flush_AcknowledgementAlone_LeavesOnce) {
  acknowledge(7);
  EXPECT_TRUE(take().empty()) << "it waits for what may take it along";
  acknowledge(8);
  batch->flush();
  const auto came = take();
  ASSERT_EQ(came.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    Packet read;
    ASSERT_TRUE(decode(came[i].bytes.data(), static_cast<uint32_t>(came[i].bytes.size()), &read));
    EXPECT_EQ(read.opcode, kSelectiveAck);
    EXPECT_EQ(read.psn, 7 + i);
  }
  batch->flush();
  EXPECT_TRUE(take().empty()) << "and leaves once";
}

TEST_F(RoceTransmitBatch, Acknowledgement_IsCarriedByARequestOfItsPathOnly) {
  acknowledge(7, 0);
  send_text("other", 1);
  batch->flush();
  EXPECT_EQ(take(0).size(), 1u);
  auto came = take(1);
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].payload(), "other");
  EXPECT_EQ(came[0].bytes.size(), kBthBytes + 8 + kIcrcBytes);

  acknowledge(8, 1);
  Packet request = packet(kBurstSend, 5, 4);
  request.ack_request = true;
  const Fragment fragment{reinterpret_cast<const std::byte*>("same"), 4};
  batch->send(1, request, &fragment, 1);
  send_text("more", 1);
  batch->flush();
  came = take(1);
  ASSERT_EQ(came.size(), 2u);
  Packet read;
  ASSERT_TRUE(decode(came[0].bytes.data(), static_cast<uint32_t>(came[0].bytes.size()), &read));
  EXPECT_TRUE(read.ack_request);
  ASSERT_NE(read.carried, nullptr);
  EXPECT_EQ(decode_carried(read).psn, 8u);
  EXPECT_EQ(came[0].payload(), "same");
  EXPECT_EQ(came[0].crc(), right_crc(came[0], 1));
  EXPECT_EQ(came[1].bytes.size(), kBthBytes + 4 + kIcrcBytes) << "it goes along once";
}

TEST_F(RoceTransmitBatch, Acknowledgement_IsNotCarriedByAnswersAndDatagrams) {
  for (const uint8_t opcode : {opcode_of(Service::kRc, Operation::kReadResponseOnly),
                               opcode_of(Service::kUd, Operation::kSendOnly), kPathProbe}) {
    acknowledge(9);
    Packet other = packet(opcode, 3);
    other.qkey = 1;
    EXPECT_EQ(batch->send(0, other, nullptr, 0), Sent::kYes);
    batch->flush();
    EXPECT_EQ(take().size(), 2u) << static_cast<int>(opcode);
  }
}

TEST_F(RoceTransmitBatch, Send_MorePacketsThanFit_LeaveInOrder) {
  const std::string payload(kMaxMtu, 'm');
  std::vector<uint32_t> numbers;
  const auto note = [&] {
    for (const BurstDatagram& datagram : take()) {
      Packet read;
      ASSERT_TRUE(decode(datagram.bytes.data(), static_cast<uint32_t>(datagram.bytes.size()), &read));
      EXPECT_EQ(datagram.payload(), payload);
      numbers.push_back(read.psn);
    }
  };
  constexpr uint32_t kPackets = 150;  // twice its room, and a little
  for (uint32_t i = 0; i < kPackets; ++i) {
    EXPECT_EQ(send(payload.data(), kMaxMtu, 0, i), Sent::kYes);
    note();
  }
  EXPECT_FALSE(numbers.empty()) << "some leave before the end";
  EXPECT_LT(numbers.size(), kPackets);
  batch->flush();
  note();
  ASSERT_EQ(numbers.size(), kPackets);
  for (uint32_t i = 0; i < kPackets; ++i) EXPECT_EQ(numbers[i], i);
}

TEST_F(RoceTransmitBatch, Send_MoreMessagesThanFit_LeaveInOrder) {
  // Each is longer than the one before, and so a message of its own.
  constexpr uint32_t kMessages = 3 * net::UdpBatch::kMaxMessages;
  for (uint32_t i = 0; i < kMessages; ++i) EXPECT_EQ(send_text(std::string(4 * i + 4, 'm')), Sent::kYes);
  batch->flush();
  const auto came = take();
  ASSERT_EQ(came.size(), kMessages);
  for (uint32_t i = 0; i < kMessages; ++i) EXPECT_EQ(came[i].payload().size(), 4 * i + 4);
}

TEST_F(RoceTransmitBatch, Flush_RefusedPackets_AreCounted) {
  ways[0].to.port = 0;  // where nothing can be sent to
  send_text("refused", 0);
  send_text("sent", 1);
  EXPECT_EQ(batch->refused(), 0u);
  batch->flush();
  EXPECT_EQ(batch->refused(), 1u);
  EXPECT_EQ(take(1).size(), 1u);
  batch->flush();
  EXPECT_EQ(batch->refused(), 1u);
}

/// Two ports and the socket by which the first one has to do with the second alone.
class RocePeerSocket : public RoceTransmitBatch {
 protected:
  void SetUp() override {
    own = PeerSocket::open(kBurstHost, sockets[0].port(), kBurstBuffer);
    ASSERT_NE(own, nullptr);
    if (!own->socket().lead_to(ways[0].to) || !own->socket().learn_identification())
      GTEST_SKIP() << "the kernel does not return the headers of sent UDP datagrams (net.core.tstamp_allow_data)";
    own = PeerSocket::open(kBurstHost, sockets[0].port(), kBurstBuffer);
    ASSERT_NE(own, nullptr);
  }
  static const void* thread(size_t number) {
    static const std::array<char, 4> places{};
    return &places[number];
  }
  std::shared_ptr<PeerSocket> own;
  std::shared_ptr<Peer> process = std::make_shared<Peer>(1 << 20);
};

TEST_F(RocePeerSocket, Open_BufferSmallerThanRequested_Fails) {
  EXPECT_EQ(PeerSocket::open(kBurstHost, sockets[0].port(), ~uint32_t{0}), nullptr);
}

TEST_F(RocePeerSocket, Claim_AfterLeadTo_Succeeds) {
  EXPECT_FALSE(own->leads(kBurstHost, process.get()));
  EXPECT_FALSE(own->claim(thread(0))) << "its identifications cannot be known";
  ASSERT_TRUE(own->lead_to(ways[0].to, process));
  EXPECT_TRUE(own->leads(kBurstHost, process.get()));
  EXPECT_TRUE(own->claim(thread(0))) << "known anew where it leads now";
  Gid other = kBurstHost;
  other.raw[15] = 2;
  EXPECT_FALSE(own->leads(other, process.get())) << "not from another address";
  auto another = std::make_shared<Peer>(1 << 20);
  EXPECT_FALSE(own->leads(kBurstHost, another.get()));
  ASSERT_TRUE(own->lead_to(ways[1].to, another));
  EXPECT_FALSE(own->leads(kBurstHost, process.get()));
  EXPECT_TRUE(own->leads(kBurstHost, another.get()));
}

TEST_F(RocePeerSocket, LeadTo_UnreachableAddress_LeadsNowhere) {
  ASSERT_TRUE(own->lead_to(ways[0].to, process));
  const net::UdpAddress nowhere{{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, 1, 0};
  EXPECT_FALSE(own->lead_to(nowhere, process));
  EXPECT_FALSE(own->leads(kBurstHost, process.get()));
}

TEST_F(RocePeerSocket, Claim_ByAnotherThread_FailsUntilItIsReleased) {
  ASSERT_TRUE(own->lead_to(ways[0].to, process));
  EXPECT_TRUE(own->claim(thread(0)));
  EXPECT_TRUE(own->claim(thread(0)));
  EXPECT_FALSE(own->claim(thread(1)));
  own->release(thread(1));
  EXPECT_FALSE(own->claim(thread(1))) << "it is not the other one's to release";
  own->release(thread(0));
  EXPECT_TRUE(own->claim(thread(1)));
}

TEST_F(RocePeerSocket, Claim_AfterAFailure_IsRetriedAfterAWhile) {
  EXPECT_FALSE(own->claim(thread(0)));
  ASSERT_TRUE(own->socket().lead_to(ways[0].to));  // a way that the peer's socket does not know of
  int refusals = 0;
  while (!own->claim(thread(0)) && refusals < 10'000) ++refusals;
  EXPECT_GT(refusals, 100) << "not each time: it costs a message";
  EXPECT_LT(refusals, 10'000);
}

TEST_F(RocePeerSocket, Identification_CountsSentMessages) {
  ASSERT_TRUE(own->lead_to(ways[0].to, process));
  ASSERT_TRUE(own->claim(thread(0)));
  const uint16_t first = own->identification();
  own->sent(3, 0);
  EXPECT_EQ(own->identification(), static_cast<uint16_t>(first + 3));
  ASSERT_TRUE(own->claim(thread(0)));
  EXPECT_EQ(own->identification(), static_cast<uint16_t>(first + 3)) << "learnt once: that costs a message";
  own->sent(2, 1);
  ASSERT_TRUE(own->claim(thread(0)));
  // Nothing has really left but the two empty messages by which it was learnt.
  EXPECT_EQ(own->identification(), static_cast<uint16_t>(first + 1)) << "whether a lost one counted is not known";
}

TEST_F(RocePeerSocket, MayUse_ASecondThread_IsFalse) {
  ASSERT_TRUE(own->lead_to(ways[0].to, process));
  TransmitBatch ports(sockets, false);
  EXPECT_FALSE(batch->may_use(nullptr));
  EXPECT_FALSE(ports.may_use(own.get())) << "the port's thread sends for anybody";
  EXPECT_TRUE(batch->may_use(own.get()));
  {
    TransmitBatch another(sockets);
    EXPECT_FALSE(another.may_use(own.get()));
  }
  EXPECT_TRUE(batch->may_use(own.get()));
  batch.reset();  // its thread ends
  TransmitBatch later(sockets);
  EXPECT_TRUE(later.may_use(own.get()));
}

TEST_F(RocePeerSocket, Send_ByThePeersSocket_HasTheCountedIdentifications) {
  ASSERT_TRUE(own->lead_to(ways[0].to, process));
  take();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(batch->may_use(own.get()));
    ways[0].own = own.get();
    uint16_t identification = own->identification();
    take();  // the message by which that was learnt
    send_text("first");
    send_text("another length");
    send_text("another length");
    batch->flush();
    const auto came = take();
    ASSERT_EQ(came.size(), 3u);
    const Route route{kBurstHost, kBurstHost, sockets[0].port(), far[0]->port()};
    for (const BurstDatagram& datagram : came) {
      const auto length = static_cast<uint32_t>(datagram.bytes.size());
      const auto expected = static_cast<uint16_t>(identification + datagram.position);
      EXPECT_EQ(datagram.crc(),
                icrc_of_state(icrc_of_headers(route, expected, length, datagram.bytes.data(), length - kIcrcBytes)));
      if (datagram.payload() == "first") ++identification;
    }
    EXPECT_EQ(own->identification(), static_cast<uint16_t>(identification + 1));
  }
}

}  // namespace
}  // namespace nupa::roce
