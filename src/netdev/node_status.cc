// SPDX-License-Identifier: Apache-2.0
/// Answers at the control socket: the node's identity, its status, and its end.
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/gid.h"
#include "json/json.h"
#include "netdev/node.h"

namespace nupa::netdev {
namespace {

/// The time for the answers to a status's probes.
constexpr int64_t kMeasureNs = 100'000'000;

/// Returns this process's network namespace, so that `nupa net down` finds the nodes of its namespace.
uint64_t network_namespace() {
  struct stat status;
  return stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::optional<std::string> Node::answer_at_control_socket(const std::string& question) {
  const std::string what = ControlSocket::field(question, "do");
  if (what == "status") {
    if (!measurement_) begin_to_measure();
    look_.set_at_latest(measurement_->ends_ns);
    return std::nullopt;
  }
  if (what == "down") loop_->stop();
  if (what == "who" || what == "down")
    return json_text({{"network", options_.network},
                      {"node", options_.node},
                      {"gid", text_of(gid_)},
                      {"interface", options_.interface},
                      {"namespace", network_namespace()},
                      {"pid", getpid()}});
  return R"({"error":"unknown request"})";
}

void Node::Totals::add(const Session& session) {
  for (const auto& traffic : session.traffic()) {
    sent += traffic->sent.get();
    sent_bytes += traffic->sent_bytes.get();
    received += traffic->received.get();
    received_bytes += traffic->received_bytes.get();
    no_room += traffic->no_room.get();
    too_long += traffic->too_long.get();
    wrong_source += traffic->wrong_source.get();
    malformed += traffic->malformed.get();
    refused += traffic->refused.get();
  }
}

std::map<std::string, Node::Totals> Node::totals() const {
  std::map<std::string, Totals> totals;
  for (const auto& [name, peer] : peers_) {
    totals[name] = peer.before;
    if (const Session* session = session_of(peer.session); session != nullptr) totals[name].add(*session);
  }
  return totals;
}

void Node::begin_to_measure() {
  const int64_t now = clock_.now_ns();
  measurement_ = Measurement{now, sessions_.empty() ? now : now + kMeasureNs, totals()};
  for (const auto& [owner, session] : sessions_) session->probe();
}

std::string Node::status() {
  auto [began, ends, earlier] = std::move(*measurement_);
  measurement_.reset();
  const auto totals = this->totals();
  const int64_t now = clock_.now_ns();
  const auto seconds_since = [now](int64_t then) {
    return static_cast<double>(now - then) / static_cast<double>(progress::kNsPerSecond);
  };
  const double seconds = seconds_since(began);
  const auto direction = [seconds](uint64_t packets, uint64_t bytes, uint64_t bytes_before) {
    const double bits = static_cast<double>(bytes - bytes_before) * 8;
    return nlohmann::json{{"packets", packets}, {"bytes", bytes}, {"bits_per_second", bits / seconds}};
  };
  nlohmann::json peers = nlohmann::json::array();
  for (const auto& [name, peer] : peers_) {
    const Totals &total = totals.at(name), &before = earlier[name];
    nlohmann::json row{{"node", name},
                       {"state", peer.session != 0 ? "up" : "down"},
                       {"for_seconds", seconds_since(peer.since_ns)},
                       {"connections", peer.connections},
                       {"mtu", peer.mtu},
                       {"sent", direction(total.sent, total.sent_bytes, before.sent_bytes)},
                       {"received", direction(total.received, total.received_bytes, before.received_bytes)},
                       {"dropped",
                        {{"no_room", total.no_room},
                         {"too_long", total.too_long},
                         {"wrong_source", total.wrong_source},
                         {"malformed", total.malformed},
                         {"refused", total.refused}}}};
    for (const Prefix& prefix : peer.addresses) row["addresses"].push_back(prefix.text());
    if (const Session* session = session_of(peer.session); session != nullptr) {
      row["transport"] = session->transport();
      row["at"] = text_of(session->remote());
      row["round_trip_us"] = static_cast<double>(session->round_trip_ns()) / 1000;
    } else {
      row["why"] = peer.why_not;
    }
    peers.push_back(std::move(row));
  }
  nlohmann::json asked = nlohmann::json::array();
  search_->each([&](const Search::Target& target) {
    // Most hosts of a pool need no node.
    if (target.is_neighbour && target.peer.empty()) return;
    if (!is_connected(target.peer)) asked.push_back({{"at", target.place()}, {"why", target.why_not}});
  });
  nlohmann::json addresses = nlohmann::json::array();
  for (const Prefix& prefix : options_.addresses) addresses.push_back(prefix.text());
  uint64_t unroutable = 0;
  for (const auto& packet_loop : context_->packet_loops) unroutable += packet_loop->unroutable();
  return json_text({{"network", options_.network},
                    {"node", options_.node},
                    {"interface", options_.interface},
                    {"addresses", addresses},
                    {"mtu", options_.mtu},
                    {"queues", options_.queues},
                    {"pid", getpid()},
                    {"namespace", network_namespace()},
                    {"for_seconds", seconds_since(started_ns_)},
                    {"unknown_peers", unknown_peers_},
                    {"unroutable", unroutable},
                    {"dropped_by_interface", tun_->dropped()},
                    {"peers", peers},
                    {"asked", asked}});
}

}  // namespace nupa::netdev
