// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Two queue pairs of the RoCEv2 engine on a simulated link, with memory, keys and receives of their own.
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "base/crc32.h"
#include "base/gid.h"
#include "simulated_link.h"
#include "transport/roce/port/packet_pool.h"
#include "transport/roce/protocol/connection.h"
#include "transport/roce/wire/icrc.h"

namespace nupa::roce::testing {

constexpr uint32_t kKey = 0x1234;

/// One end's memory and queues. Everything lies in one region with key kKey, whose addresses start at kBase.
class SimHost final : public Host {
 public:
  static constexpr uint64_t kBase = 0x100000;
  struct Done {
    uint64_t wr_id;
    WcStatus status;
    uint64_t length;
  };
  struct Received {
    uint64_t wr_id;
    WcStatus status;
    Inbound message;
    std::vector<Sge> list;
  };
  struct Posted {
    uint64_t wr_id;
    std::vector<Sge> list;
  };

  explicit SimHost(size_t bytes) : memory(bytes) {}

  std::byte* at(uint64_t address, uint64_t length) {
    if (address < kBase || address - kBase > memory.size() || length > memory.size() - (address - kBase))
      return nullptr;
    return memory.data() + (address - kBase);
  }
  bool locate(const Sge& sge, uint32_t, std::byte** data) override {
    *data = at(sge.addr, sge.length);
    return sge.lkey == kKey && *data != nullptr;
  }
  WcStatus run_local(const SendWr&) override {
    ++locals;
    return WcStatus::kSuccess;
  }
  void complete_send(const SendWr& wr, uint32_t, WcStatus status, uint64_t length) override {
    done.push_back({wr.wr_id, status, length});
    if (on_done) on_done();
  }
  std::byte* reach(uint32_t, uint32_t rkey, uint64_t address, uint64_t length, uint32_t wanted) override {
    return rkey == kKey && (rights & wanted) == wanted ? at(address, length) : nullptr;
  }
  bool take_receive() override {
    if (receives.empty()) return false;
    taken = std::move(receives.front());
    receives.pop_front();
    holds = true;
    return true;
  }
  uint64_t receive_room() override {
    uint64_t room = 0;
    for (const Sge& sge : taken.list) room += sge.length;
    return room;
  }
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override {
    for (const Sge& sge : taken.list) {
      if (offset >= sge.length) {
        offset -= sge.length;
        continue;
      }
      const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, length));
      std::byte* to = nullptr;
      if (!locate(sge, 0, &to)) return false;
      std::memcpy(to + offset, data, bytes);
      if (behind != nullptr) *behind = to + offset + bytes;
      data += bytes;
      length -= bytes;
      offset = 0;
    }
    return true;
  }
  void complete_receive(const Inbound& message, WcStatus status) override {
    holds = false;
    received.push_back({taken.wr_id, status, message, taken.list});
    if (on_received) on_received();
  }
  void return_receive() override {
    holds = false;
    receives.push_front(std::move(taken));
  }
  bool invalidate(uint32_t) override { return true; }
  void refuse(std::optional<EventType> event) override {
    refused = true;
    refusal = event;
  }
  uint8_t rnr_timer() const override { return 5; }  // 60 us
  void established() override { ++established_count; }

  std::vector<std::byte> memory;
  std::deque<Posted> receives;
  Posted taken;
  bool holds = false;
  uint32_t rights = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  std::vector<Done> done;
  std::vector<Received> received;
  std::function<void()> on_done;
  std::function<void()> on_received;
  int locals = 0;
  int established_count = 0;
  bool refused = false;
  std::optional<EventType> refusal;
};

inline Gid gid_of(uint8_t host) { return base::ipv4_gid(10, 0, 0, host); }

/// Turns what the engine sends into packets on a link, as a socket would.
class SimOutput final : public Output {
 public:
  /// `links`: one a path.
  SimOutput(const std::vector<sim::SimulatedLink*>& links, const Route& route) : links_(links), route_(route) {}
  Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) override {
    std::vector<std::byte> bytes;
    bytes.reserve(kMaxPacketBytes);
    bytes.resize(kMaxHeaderBytes);
    bytes.resize(encode(packet, bytes.data()));
    uint32_t length = 0;
    for (uint32_t i = 0; i < fragments; ++i) {
      const std::byte* from = payload[i].data;
      if (from == nullptr)
        bytes.resize(bytes.size() + payload[i].length);
      else
        bytes.insert(bytes.end(), from, from + payload[i].length);
      length += payload[i].length;
    }
    if (length != packet.payload_length) return Sent::kNotNow;
    bytes.resize(bytes.size() + pad_of(length) + kIcrcBytes);
    const auto whole = static_cast<uint32_t>(bytes.size());
    uint32_t state = icrc_of_headers(route_, 0, whole, bytes.data(), kBthBytes, &routes_);
    state = base::crc32(state, bytes.data() + kBthBytes, whole - kBthBytes - kIcrcBytes);
    store_icrc(icrc_of_state(state), bytes.data() + whole - kIcrcBytes);
    if (watch) watch(packet);
    links_.at(path)->send(now, std::move(bytes));
    return Sent::kYes;
  }
  int64_t now = 0;
  std::function<void(const Packet&)> watch;

 private:
  std::vector<sim::SimulatedLink*> links_;
  Route route_;
  RouteStates routes_;
};

struct EndOptions {
  RequesterOptions requester;
  ResponderOptions responder;
};

/// One end: host, engine, and the way out.
class End {
 public:
  End(size_t memory, const EndOptions& options, const std::vector<sim::SimulatedLink*>& out, const Route& route,
      PacketPool& pool)
      : host(memory), output(out, route), connection(host, options.requester, options.responder, pool) {}

  /// A packet from the wire. False: it was not one that the engine may see.
  bool receive(const sim::SimulatedLink::Arrival& arrival, const Route& route, uint32_t own_qpn, uint8_t path,
               int64_t now) {
    const auto length = static_cast<uint32_t>(arrival.bytes.size());
    Packet packet;
    if (!icrc_holds(route, arrival.bytes.data(), length, 0, 0, nullptr, &routes_) ||
        !decode(arrival.bytes.data(), length, &packet) || packet.dest_qpn != own_qpn) {
      ++refused_packets;
      return false;
    }
    packet.path = path;
    connection.receive(packet, arrival.marked, now);
    return true;
  }
  void transmit(int64_t now) {
    output.now = now;
    while (connection.transmit(now, output, 64)) {
    }
  }

  SimHost host;
  SimOutput output;
  Connection connection;
  uint64_t refused_packets = 0;
  RouteStates routes_;
};

/// Two ends, a and b, and the time.
class World {
 public:
  struct Options {
    Service service = Service::kRc;
    uint32_t mtu = 1024;
    uint32_t first_psn = 0;
    uint32_t max_wr = 64;
    uint32_t max_sge = 4;
    size_t memory = 1 << 20;
    uint8_t mark_a = kNupaMark;
    uint8_t mark_b = kNupaMark;
    uint32_t pool = 1024;
    core::RetryLimits limits{.timeout = 8, .retry_cnt = 7, .rnr_retry = 7};
    uint8_t max_rd_atomic = 4;
    sim::LinkOptions link;
    std::vector<sim::LinkOptions> more_paths;  ///< beside `link`
    std::string_view congestion = "none";
    uint32_t receive_window = 0;  ///< bytes that each end says it is ready for; 0: nothing is said
  };
  static constexpr uint32_t kQpnA = 0x001002;
  static constexpr uint32_t kQpnB = 0x002003;

  World(const Options& options, uint64_t seed)
      : pool(options.pool),
        to_b(options.link, seed * 2 + 1),
        to_a(options.link, seed * 2 + 2),
        links_to_b_{make_links(to_b, options, seed * 2 + 1, more_to_b_)},
        links_to_a_{make_links(to_a, options, seed * 2 + 2, more_to_a_)},
        route_to_b_{gid_of(1), gid_of(2), 50000, kUdpPort},
        route_to_a_{gid_of(2), gid_of(1), 50001, kUdpPort},
        a(options.memory, end_options(options, kQpnB, options.mark_a), links_to_b_, route_to_b_, pool),
        b(options.memory, end_options(options, kQpnA, options.mark_b), links_to_a_, route_to_a_, pool) {
    for (End* end : {&a, &b}) {
      end->connection.requester().set_limits(options.limits, options.max_rd_atomic);
      if (options.receive_window != 0) end->connection.requester().set_room(UINT64_MAX, options.receive_window);
      if (!options.more_paths.empty()) end->connection.requester().set_paths(path_count());
      end->connection.responder().set_max_rd_atomic(options.max_rd_atomic);
    }
  }

  int64_t next_event() const {
    int64_t when = INT64_MAX;
    for (uint32_t path = 0; path < path_count(); ++path)
      when = std::min({when, links_to_a_[path]->next_arrival(), links_to_b_[path]->next_arrival()});
    when = std::min(when, a.connection.deadline());
    if (!b_frozen) when = std::min(when, b.connection.deadline());
    for (const auto& [at, what] : plans) when = std::min(when, at);
    return when;
  }
  /// Handles everything at the next moment something happens. False: nothing ever will.
  bool step() {
    const int64_t when = next_event();
    if (when == INT64_MAX) return false;
    now = std::max(now, when);
    for (uint8_t path = 0; path < path_count(); ++path) {
      while (links_to_b_[path]->next_arrival() <= now) {
        const auto arrival = links_to_b_[path]->take();
        if (!b_frozen) b.receive(arrival, route_to_b_, kQpnB, path, now);
      }
      while (links_to_a_[path]->next_arrival() <= now) {
        const auto arrival = links_to_a_[path]->take();
        a.receive(arrival, route_to_a_, kQpnA, path, now);
      }
    }
    for (size_t i = 0; i < plans.size();) {
      if (plans[i].first > now) {
        ++i;
        continue;
      }
      auto what = std::move(plans[i].second);
      plans.erase(plans.begin() + static_cast<ptrdiff_t>(i));
      what();
    }
    a.connection.on_timer(now);
    a.transmit(now);
    if (!b_frozen) {
      b.connection.on_timer(now);
      b.transmit(now);
    }
    return true;
  }
  /// Until `done` says so, nothing more happens, or `limit` of simulated time is over. True: done.
  bool run(const std::function<bool()>& done, int64_t limit = INT64_C(1'000'000'000'000)) {
    const int64_t until = now + limit;
    while (!done()) {
      if (now > until || !step()) return done();
    }
    return true;
  }
  uint32_t path_count() const { return static_cast<uint32_t>(links_to_b_.size()); }
  sim::SimulatedLink& link_to_b(uint32_t path) { return *links_to_b_[path]; }
  sim::SimulatedLink& link_to_a(uint32_t path) { return *links_to_a_[path]; }
  /// What both directions of a path do from now on.
  void change_path(uint32_t path, const sim::LinkOptions& link) {
    links_to_b_[path]->set_options(link);
    links_to_a_[path]->set_options(link);
  }
  void plan(int64_t when, std::function<void()> what) { plans.emplace_back(when, std::move(what)); }

  int64_t now = 1'000'000;
  bool b_frozen = false;
  PacketPool pool;
  sim::SimulatedLink to_b;
  sim::SimulatedLink to_a;
  std::vector<std::pair<int64_t, std::function<void()>>> plans;

 private:
  static EndOptions end_options(const Options& options, uint32_t peer, uint8_t mark) {
    EndOptions end;
    end.requester.service = end.responder.service = options.service;
    end.requester.dest_qpn = end.responder.peer_qpn = peer;
    end.requester.first_psn = end.responder.first_psn = options.first_psn;
    end.requester.mtu = end.responder.mtu = options.mtu;
    end.requester.max_wr = options.max_wr;
    end.requester.max_sge = options.max_sge;
    end.requester.max_inline = 256;
    end.requester.mark = end.responder.mark = mark;
    end.requester.congestion = options.congestion;
    end.responder.window = options.receive_window;
    return end;
  }
  static std::vector<sim::SimulatedLink*> make_links(sim::SimulatedLink& first, const Options& options, uint64_t seed,
                                                     std::deque<sim::SimulatedLink>& more) {
    std::vector<sim::SimulatedLink*> links{&first};
    for (const sim::LinkOptions& link : options.more_paths)
      links.push_back(&more.emplace_back(link, seed + 1000 * links.size()));
    return links;
  }
  std::deque<sim::SimulatedLink> more_to_b_;
  std::deque<sim::SimulatedLink> more_to_a_;
  std::vector<sim::SimulatedLink*> links_to_b_;
  std::vector<sim::SimulatedLink*> links_to_a_;
  Route route_to_b_;
  Route route_to_a_;

 public:
  End a;
  End b;
};

}  // namespace nupa::roce::testing
