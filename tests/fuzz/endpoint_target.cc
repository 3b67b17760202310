// SPDX-License-Identifier: Apache-2.0
// Packets that arrive at two queue pairs, a connected one and one for datagrams: packets for others change nothing and
// are counted, and packets for them are received, before and after.
#include "base/gid.h"
#include "guarded_host.h"
#include "targets.h"
#include "core/seam/grh.h"
#include "transport/roce/datagram_endpoint.h"

namespace nupa::fuzz {
namespace {

using namespace roce;

constexpr uint32_t kConnected = 0x001001;
constexpr uint32_t kDatagrams = 0x001002;
constexpr uint32_t kPeer = 0x002001;
constexpr uint32_t kQkey = 0x11111111;
constexpr uint32_t kFirstPsn = 0xfffffe;
constexpr uint32_t kReceiveBytes = 256;
constexpr uint16_t kPkeys[] = {0xffff, 0x7fff};  // full and limited members of the default partition

Gid address(uint8_t host) { return base::ipv4_gid(127, 0, 0, host); }

/// A port that nobody sends to; its socket is real, since its class has no other.
Port& port() {
  static const std::unique_ptr<Port> made = [] {
    auto socket = net::UdpSocket::open(0, 4096);
    require(static_cast<bool>(socket), "there is a UDP port");
    auto opened = Port::open(std::move(*socket));
    require(static_cast<bool>(opened), "a port opens");
    return std::move(*opened);
  }();
  return *made;
}

QpAttr attributes() {
  QpAttr attr{};
  attr.path_mtu = Mtu::k1024;
  attr.dest_qp_num = kPeer;
  attr.rq_psn = kFirstPsn;
  attr.max_dest_rd_atomic = 4;
  return attr;
}

class Doors {
 public:
  Doors() {
    for (shm::QpShared* shared : {&connected_shared_, &datagram_shared_}) {
      shared->state.store(shm::pack_state(1, QpState::kRts));
      shared->qkey.store(kQkey);
    }
    connected_.start(0);
    from_.from = {address(2), 50000, 0};
    from_.to = address(1);
  }
  ~Doors() {
    connected_.withdraw();
    connected_.stop();
    datagrams_.withdraw();
  }

  void run(Input& input) {
    while (!input.used_up()) {
      const uint32_t what = input.u8();
      if (what % 8 == 0)
        raw(input, what / 8 % 2 == 0);
      else if (what % 2 == 0)
        write(input, what / 2 % 8);
      else
        datagram(input, what / 2 % 8);
    }
  }

 private:
  static LocalEnd end(GuardedHost& host, shm::QpShared& shared, shm::StatisticsShared& block, uint32_t number,
                      QpType type) {
    host.identity() = {number, type, {}, true, &shared, &block};
    host.identity().cap.max_send_wr = 4;
    host.identity().cap.max_send_sge = 1;
    return {&host, {Rail{.address = address(1), .port = kUdpPort}}, kMaxMtu, false};
  }

  /// Delivers, with one thing wrong that `fault` chooses; returns whether nothing was.
  bool deliver(QpReceiver& queue_pair, shm::QpShared& shared, Packet packet, uint32_t fault, Input& input) {
    net::UdpSocket::Received from = from_;
    QpState state = QpState::kRts;
    packet.pkey = kPkeys[packet.psn % 2];
    const bool datagram = service_of(packet.opcode) == Service::kUd;
    bool wrong = true;
    switch (fault) {
      case 1:
        if (datagram)  // anybody may send one
          packet.qkey ^= 1u << input.u8() % 32;
        else
          from.from.address = address(static_cast<uint8_t>(3 + input.below(200)));
        break;
      case 2:
        packet.pkey = static_cast<uint16_t>(packet.pkey ^ 1u << input.u8() % 15);
        break;
      case 3:
        packet.opcode = opcode_of(datagram ? Service::kRc : Service::kUd, Operation::kSendOnly);
        break;
      case 4: {
        static constexpr QpState kDeaf[] = {QpState::kReset, QpState::kInit, QpState::kErr};
        state = kDeaf[input.below(3)];
        break;
      }
      case 5:
        if (!datagram) from.to = address(9);
        wrong = !datagram;
        break;
      default:
        wrong = false;
    }
    shared.state.store(shm::pack_state(1, state));
    const auto& wire = *reinterpret_cast<const Statistics*>(
        (&shared == &connected_shared_ ? connected_block_ : datagram_block_).bytes);
    const uint64_t unexpected = wire.unexpected_packets.load();
    const uint64_t before = connected_host_.fingerprint() * 31 + datagram_host_.fingerprint();
    queue_pair.deliver(packet, from, 1'000);
    shared.state.store(shm::pack_state(1, QpState::kRts));
    if (wrong) {
      require(before == connected_host_.fingerprint() * 31 + datagram_host_.fingerprint(),
              "a packet that is not for a queue pair changes nothing");
      require(fault == 3 || wire.unexpected_packets.load() == unexpected + 1, "and is counted");
    } else {
      require(wire.unexpected_packets.load() == unexpected, "a packet for it is not counted as unexpected");
    }
    return !wrong;
  }

  /// An RDMA WRITE of a number that was not there before.
  void write(Input& input, uint32_t fault) {
    if (spoilt_) return;
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kWriteOnly);
    packet.psn = psn_ & kPsnMask;
    packet.rkey = GuardedHost::kRemote;
    packet.address = GuardedHost::base_of(GuardedHost::kRemote);
    packet.length = packet.payload_length = sizeof written_;
    const uint64_t value = written_ + 1;
    packet.payload = reinterpret_cast<const std::byte*>(&value);
    if (!deliver(connected_, connected_shared_, packet, fault, input)) return;
    std::byte* at = connected_host_.reach(0, packet.rkey, packet.address, sizeof value, access::kRemoteWrite);
    require(std::memcmp(at, &value, sizeof value) == 0, "the number that is expected is accepted");
    written_ = value;
    ++psn_;
  }

  void datagram(Input& input, uint32_t fault) {
    const std::vector<std::byte> payload = input.bytes(input.u16() % (2 * kReceiveBytes));
    const uint64_t offset = input.u8();
    datagram_host_.post_receive({{GuardedHost::base_of(GuardedHost::kReceives) + offset, kReceiveBytes,
                                  input.below(16) == 0 ? GuardedHost::kSource : GuardedHost::kReceives}});
    const uint64_t received = datagram_host_.received;
    Packet packet;
    packet.opcode = opcode_of(Service::kUd, input.below(2) == 0 ? Operation::kSendOnly : Operation::kSendOnlyImm);
    packet.qkey = kQkey;
    packet.source_qpn = kPeer;
    packet.payload = payload.data();
    packet.payload_length = static_cast<uint32_t>(payload.size());
    if (!deliver(datagrams_, datagram_shared_, packet, fault, input)) return;
    const bool fits = payload.size() + core::kGrhBytes <= kReceiveBytes;
    require((datagram_host_.received == received + 1) == fits, "a datagram that fits is received, another is not");
  }

  /// Anything that can be read as a packet.
  void raw(Input& input, bool connected) {
    const std::vector<std::byte> bytes = input.bytes(input.u16() % 600);
    Packet packet;
    if (!decode(bytes.data(), static_cast<uint32_t>(bytes.size()), &packet)) return;
    spoilt_ = spoilt_ || connected;
    if (connected)
      connected_.deliver(packet, from_, 1'000);
    else
      datagrams_.deliver(packet, from_, 1'000);
  }

  GuardedHost connected_host_;
  GuardedHost datagram_host_;
  shm::QpShared connected_shared_{};
  shm::QpShared datagram_shared_{};
  shm::StatisticsShared connected_block_{};
  shm::StatisticsShared datagram_block_{};
  net::UdpSocket::Received from_;
  ConnectedEndpoint connected_{port(),
                               end(connected_host_, connected_shared_, connected_block_, kConnected, QpType::kRc),
                               attributes(),
                               address(2),
                               {}};
  DatagramEndpoint datagrams_{
      port(), end(datagram_host_, datagram_shared_, datagram_block_, kDatagrams, QpType::kUd), {}, {}};
  uint32_t psn_ = kFirstPsn;
  uint64_t written_ = 0;
  bool spoilt_ = false;  ///< something unknown was delivered: what the connection expects is not known
};

}  // namespace

void endpoint(const uint8_t* data, size_t length) {
  Input input(data, length);
  Doors().run(input);
}

}  // namespace nupa::fuzz
