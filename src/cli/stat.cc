#include <arpa/inet.h>
#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "core/device_table.h"
#include "observe.h"
#include "progress/waiter.h"
#include "transport_alias.h"

namespace nupa::cli {
namespace {

constexpr double kLongestWatch = 1e9;

const char* name_of(QpType type) {
  switch (type) {
    case QpType::kRc:
      return "RC";
    case QpType::kUc:
      return "UC";
    case QpType::kUd:
      return "UD";
    case QpType::kXrcSend:
      return "XRC_SEND";
    case QpType::kXrcRecv:
      return "XRC_RECV";
  }
  return "?";
}

const char* name_of(QpState state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return static_cast<uint32_t>(state) < std::size(kNames) ? kNames[static_cast<uint32_t>(state)] : "?";
}

std::string address_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const auto* raw = reinterpret_cast<const in6_addr*>(gid.raw.data());
  if (IN6_IS_ADDR_V4MAPPED(raw))
    inet_ntop(AF_INET, &gid.raw[12], text, sizeof text);
  else
    inet_ntop(AF_INET6, raw, text, sizeof text);
  return text;
}

bool is_on_the_wire(const segment::QpShared& qp) {
  return qp.carrier.load() == static_cast<uint32_t>(segment::Carrier::kRoce);
}

const char* name_of(segment::PathHealth health) {
  switch (health) {
    case segment::PathHealth::kUnproven:
      return "unproven";
    case segment::PathHealth::kAlive:
      return "alive";
    case segment::PathHealth::kDead:
      return "dead";
  }
  return "?";
}

nlohmann::json paths_of(const segment::WireShared& wire) {
  nlohmann::json paths = nlohmann::json::array();
  const uint32_t count = std::min(wire.paths.load(), segment::kMaxWirePaths);
  for (const segment::PathShared* path = wire.path; path != wire.path + count; ++path) {
    const uint64_t window = path->window.load();
    const uint32_t ports = path->ports.load();
    paths.push_back({{"address", address_text(path->to)},
                     {"port", ports & 0xffff},
                     {"from_address", address_text(path->from)},
                     {"from_port", ports >> 16},
                     {"health", name_of(static_cast<segment::PathHealth>(path->health.load()))},
                     {"round_trip_us", static_cast<double>(path->round_trip_ns.load()) / 1000},
                     {"window", window == ~uint64_t{0} ? nlohmann::json() : nlohmann::json(window)},
                     {"in_flight", path->in_flight.load()},
                     {"rate", path->rate.load()},
                     {"ecn_marked", path->marked.load()}});
  }
  return paths;
}

void add_wire(const segment::WireShared& wire, nlohmann::json* row) {
  (*row)["paths"] = paths_of(wire);
  (*row)["standard_peer"] = wire.standard.load() != 0;
  (*row)["resent"] = {{"sequence", wire.resent_sequence.load()},
                      {"selective", wire.resent_selective.load()},
                      {"timeout", wire.resent_timeout.load()}};
}

/// Packets that changed nothing.
nlohmann::json ignored_by(const segment::WireShared& wire) {
  return {{"strangers", wire.strangers.load()},
          {"duplicates", wire.duplicates.load()},
          {"stray", wire.stray.load()},
          {"dropped", wire.dropped.load()}};
}

nlohmann::json look(const std::vector<Observed>& processes) {
  std::map<uint32_t, std::string> names;
  for (const Observed& observed : processes) {
    const segment::SegmentHeader& header = *observed.process.tables.header;
    names[header.slot] = fmt::format("{}[{}]", header.command, header.pid);
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const Observed& observed : processes) {
    const segment::SegmentHeader& header = *observed.process.tables.header;
    const uint32_t count = std::min(header.qp_high_water.load(), segment::kMaxQp);
    for (uint32_t i = 0; i < count; ++i) {
      const segment::QpShared& qp = observed.process.tables.qp[i];
      if (qp.in_use.load() == 0) continue;
      const uint32_t peer = qp.remote_slot.load();
      const auto type = static_cast<QpType>(qp.type.load());
      const bool connected = type != QpType::kUd && peer != 0;
      std::string other = connected ? (names.count(peer) != 0 ? names[peer] : "gone") : "";
      const segment::WireShared& wire = observed.process.tables.wire[i];
      const bool connected_by_wire = is_on_the_wire(qp) && type != QpType::kUd;
      if (connected_by_wire) other = address_text(wire.path[0].to);
      rows.push_back({{"pid", header.pid},
                      {"command", header.command},
                      {"slot", header.slot},
                      {"device", core::device_name(qp.device.load())},
                      {"qp_num", qp.qp_num.load()},
                      {"type", name_of(type)},
                      {"state", name_of(segment::state_of(qp.state.load()))},
                      {"transport", is_on_the_wire(qp) ? "roce" : "shm"},
                      {"peer_qp_num", qp.remote_qpn.load()},
                      {"peer", other},
                      {"messages", qp.counters.messages.load()},
                      {"bytes", qp.counters.bytes.load()},
                      {"received", qp.received.load()},
                      {"errors", qp.counters.errors.load()},
                      {"rnr", qp.counters.rnr.load()}});
      add_transport_alias(&rows.back());
      if (is_on_the_wire(qp)) rows.back()["ignored"] = ignored_by(wire);
      if (connected_by_wire) add_wire(wire, &rows.back());
    }
  }
  return rows;
}

void print(const nlohmann::json& rows) {
  fmt::print("{:<22} {:<6} {:>8} {:<8} {:<5} {:<9} {:<22} {:>12} {:>16} {:>12} {:>7} {:>7}\n", "PROCESS", "DEVICE",
             "QP", "TYPE", "STATE", "TRANSPORT", "PEER", "MESSAGES", "BYTES", "RECEIVED", "ERRORS", "RNR");
  for (const auto& row : rows) {
    fmt::print("{:<22} {:<6} {:#08x} {:<8} {:<5} {:<9} {:<22} {:>12} {:>16} {:>12} {:>7} {:>7}\n",
               fmt::format("{}[{}]", row["command"].get<std::string>(), row["pid"].get<int>()),
               row["device"].get<std::string>(), row["qp_num"].get<uint32_t>(), row["type"].get<std::string>(),
               row["state"].get<std::string>(), row["transport"].get<std::string>(), row["peer"].get<std::string>(),
               row["messages"].get<uint64_t>(), row["bytes"].get<uint64_t>(), row["received"].get<uint64_t>(),
               row["errors"].get<uint64_t>(), row["rnr"].get<uint64_t>());
  }
}

}  // namespace

int stat(bool json, double watch_seconds) {
  auto dir = cm::RuntimeDir::open();
  if (!dir) {
    fmt::print(stderr, "nupa: {}\n", dir.error().what);
    return 1;
  }
  for (;;) {
    const Observation seen = observe_all(**dir);
    const nlohmann::json rows = look(seen.processes);
    if (json)
      fmt::print("{}\n", rows.dump(2));
    else
      print(rows);
    for (const uint32_t slot : seen.silent)
      fmt::print(stderr, "nupa: the process of {}/{}.sock does not answer; is it stopped?\n", (*dir)->path(), slot);
    if (watch_seconds <= 0) return 0;
    std::fflush(stdout);
    progress::sleep_for(static_cast<int64_t>(std::min(watch_seconds, kLongestWatch) * progress::kNsPerSecond));
  }
}

int clean(bool dry_run) {
  auto dir = cm::RuntimeDir::open();
  if (!dir) {
    fmt::print(stderr, "nupa: {}\n", dir.error().what);
    return 1;
  }
  const auto dead = (*dir)->sweep(dry_run);
  for (const uint32_t slot : dead)
    fmt::print("{} {}/{}.sock\n", dry_run ? "would remove" : "removed", (*dir)->path(), slot);
  const auto dead_names = (*dir)->sweep_names(dry_run);
  for (const std::string& name : dead_names)
    fmt::print("{} {}/{}.name\n", dry_run ? "would remove" : "removed", (*dir)->path(), name);
  if (dead.empty() && dead_names.empty()) fmt::print("nothing to clean in {}\n", (*dir)->path());
  for (const std::string& name : (*dir)->strangers())
    fmt::print("left alone: {}/{} (not NUPA's)\n", (*dir)->path(), name);
  return 0;
}

}  // namespace nupa::cli
