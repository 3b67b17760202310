// SPDX-License-Identifier: Apache-2.0
// Processor time that the RoCEv2 engine takes for a packet, both ends together, in order and spread over paths of
// unequal length: the table of docs/design/roce.md. Packets are handed over as structures, without a socket, encoding
// or CRC.
//   packet_costs [PACKETS]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "transport/roce/port/packet_pool.h"
#include "transport/roce/protocol/connection.h"

namespace {

using namespace nupa;
using namespace nupa::roce;

constexpr uint32_t kMessage = 64 << 10;
constexpr uint64_t kBase = 0x100000;
constexpr uint32_t kRoom = 1 << 20;
constexpr uint64_t kMessagesUnderWay = 8;
constexpr double kWireRate = 12.5;  // bytes a nanosecond
constexpr int64_t kDelayNs = 6'000;

/// Memory that all connections write to, and no receives.
class Memory final : public Host {
 public:
  explicit Memory(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  bool locate(const Sge& sge, uint32_t, std::byte** data) override {
    *data = bytes_.data() + (sge.addr - kBase);
    return true;
  }
  WcStatus run_local(const SendWr&) override { return WcStatus::kSuccess; }
  void complete_send(const SendWr&, uint32_t, WcStatus status, uint64_t) override {
    if (status != WcStatus::kSuccess) {
      fprintf(stderr, "packet_costs: a request failed with status %d\n", static_cast<int>(status));
      exit(1);
    }
    ++completed;
  }
  std::byte* reach(uint32_t, uint32_t, uint64_t address, uint64_t, uint32_t) override {
    return bytes_.data() + (address - kBase);
  }
  bool take_receive() override { return false; }
  uint64_t receive_room() override { return 0; }
  bool place(uint64_t, const std::byte*, uint32_t, const std::byte**) override { return false; }
  void complete_receive(const Inbound&, WcStatus) override {}
  void return_receive() override {}
  bool invalidate(uint32_t) override { return true; }
  void refuse(std::optional<EventType>) override {}
  uint8_t rnr_timer() const override { return 5; }
  void established() override {}

  uint64_t completed = 0;

 private:
  std::vector<std::byte>& bytes_;
};

struct UnderWay {
  Packet packet;
  uint32_t connection;
  std::array<std::byte, kBitmapWords * 4> bitmap;
};

/// One direction of all wires: time is counted in packets, of which each connection sends one at a time.
class Wires {
 public:
  Wires(uint32_t delay, uint32_t spread) : delay_(delay), spread_(spread), slots_(delay + spread + 2) {}
  void send(const Packet& packet, uint32_t connection, const Fragment* payload, uint32_t fragments) {
    const uint64_t when = now + delay_ + (spread_ == 0 ? 0 : random_() % (spread_ + 1));
    UnderWay& sent = slots_[when % slots_.size()].emplace_back();
    sent.packet = packet;
    sent.connection = connection;
    if (fragments == 0 || payload[0].data == nullptr) return;
    sent.packet.payload = payload[0].data;
    if (packet.opcode == kSelectiveAck) std::memcpy(sent.bitmap.data(), payload[0].data, payload[0].length);
  }
  template <class Use>
  void deliver(Use&& use) {
    std::vector<UnderWay>& slot = slots_[now % slots_.size()];
    for (UnderWay& arrived : slot) {
      if (arrived.packet.opcode == kSelectiveAck) arrived.packet.payload = arrived.bitmap.data();
      use(arrived);
    }
    slot.clear();
  }

  uint64_t now = 0;

 private:
  const uint32_t delay_;
  const uint32_t spread_;
  std::vector<std::vector<UnderWay>> slots_;
  std::minstd_rand random_{1};
};

class WireOutput final : public Output {
 public:
  WireOutput(Wires& wires, uint32_t connection, uint32_t at_a_time)
      : wires_(wires), connection_(connection), at_a_time_(at_a_time) {}
  void begin() { left_ = at_a_time_; }
  Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) override {
    if (left_ == 0) return Sent::kNotNow;
    --left_;
    ++sent;
    wires_.send(packet, connection_, payload, fragments);
    static_cast<void>(path);
    return Sent::kYes;
  }
  uint64_t sent = 0;

 private:
  Wires& wires_;
  const uint32_t connection_;
  const uint32_t at_a_time_;
  uint32_t left_ = 0;
};

struct Pair {
  Pair(std::vector<std::byte>& source, std::vector<std::byte>& target, Wires& forth, Wires& back, uint32_t index,
       const RequesterOptions& requests, const ResponderOptions& responses, PacketPool& pool)
      : from(source),
        to(target),
        requests_out(forth, index, 1),
        answers_out(back, index, 64),
        sender(from, requests, responses, pool),
        receiver(to, requests, responses, pool) {
    sender.requester().set_limits({.timeout = 14}, 1);
  }
  Memory from;
  Memory to;
  WireOutput requests_out;
  WireOutput answers_out;
  Connection sender;
  Connection receiver;
  uint64_t posted = 0;
};

double processor_ns() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

struct Cost {
  double ns;       ///< a packet, both ends
  double answers;  ///< a packet
  double resent;   ///< share of the packets
};

Cost measure(uint32_t connections, uint32_t mtu, int64_t spread_ns, uint64_t packets) {
  const double packet_ns = mtu / kWireRate;
  Wires forth(static_cast<uint32_t>(kDelayNs / packet_ns), static_cast<uint32_t>(spread_ns / packet_ns));
  Wires back(static_cast<uint32_t>(kDelayNs / packet_ns), static_cast<uint32_t>(spread_ns / packet_ns));
  std::vector<std::byte> source(kMessage), target(kMessage);
  PacketPool pool(connections * 256);
  RequesterOptions requests;
  requests.mtu = mtu;
  requests.max_wr = 16;
  requests.congestion = "none";
  ResponderOptions responses;
  responses.mtu = mtu;
  responses.window = kRoom;
  std::vector<std::unique_ptr<Pair>> pairs;
  for (uint32_t i = 0; i < connections; ++i)
    pairs.push_back(std::make_unique<Pair>(source, target, forth, back, i, requests, responses, pool));
  uint64_t arrived = 0;
  uint64_t answers = 0;
  uint64_t time = 1'000'000;
  double begun = 0;
  uint64_t counted_from = 0;
  uint64_t answers_from = 0;
  const uint64_t warm = packets / 4;
  while (arrived < packets + warm) {
    if (begun == 0 && arrived >= warm) {
      begun = processor_ns();
      counted_from = arrived;
      answers_from = answers;
    }
    ++time;
    forth.now = back.now = time;
    const auto now = static_cast<int64_t>(static_cast<double>(time) * packet_ns);
    forth.deliver([&](const UnderWay& each) {
      Pair& pair = *pairs[each.connection];
      ++arrived;
      pair.receiver.receive(each.packet, false, now);
      pair.answers_out.begin();
      while (pair.receiver.transmit(now, pair.answers_out, 64)) {
      }
    });
    back.deliver([&](const UnderWay& each) {
      ++answers;
      pairs[each.connection]->sender.receive(each.packet, false, now);
    });
    for (auto& each : pairs) {
      Pair& pair = *each;
      for (; pair.posted < pair.from.completed + kMessagesUnderWay; ++pair.posted) {
        const Sge sge{kBase, kMessage, 0};
        SendWr wr;
        wr.wr_id = pair.posted;
        wr.opcode = Opcode::kRdmaWrite;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.remote_addr = kBase;
        pair.sender.requester().post(wr, static_cast<uint32_t>(pair.posted));
      }
      if (pair.sender.deadline() <= now) pair.sender.on_timer(now);
      pair.requests_out.begin();
      pair.sender.transmit(now, pair.requests_out, 4);
    }
  }
  const double took = processor_ns() - begun;
  uint64_t resent = 0;
  uint64_t sent = 0;
  for (auto& pair : pairs) {
    const RequesterCounters& counters = pair->sender.requester().counters();
    resent += counters.resent_selective + counters.resent_timeout;
    sent += counters.packets;
  }
  const auto counted = static_cast<double>(arrived - counted_from);
  return {took / counted, static_cast<double>(answers - answers_from) / counted,
          static_cast<double>(resent) / static_cast<double>(sent)};
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t packets = argc > 1 ? strtoull(argv[1], nullptr, 0) : 1'000'000;
  constexpr int kRounds = 5;
  printf("connections   MTU  spread us  ns a packet  of in order  answers a packet  sent again\n");
  for (const uint32_t connections : {1u, 64u, 1024u}) {
    for (const uint32_t mtu : {1024u, 4096u}) {
      double in_order = 0;
      for (const int64_t spread_us : {0, 3, 8, 20}) {
        Cost best{1e12, 0, 0};
        for (int round = 0; round < kRounds; ++round) {
          const Cost cost = measure(connections, mtu, spread_us * 1000, packets);
          if (cost.ns < best.ns) best = cost;
        }
        if (spread_us == 0) in_order = best.ns;
        printf("%11u  %4u  %9ld  %11.0f  %11.2f  %16.3f  %10.4f\n", connections, mtu, static_cast<long>(spread_us),
               best.ns, best.ns / in_order, best.answers, best.resent);
      }
    }
  }
  return 0;
}
