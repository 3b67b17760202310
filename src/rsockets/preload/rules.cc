// SPDX-License-Identifier: Apache-2.0
#include "rsockets/preload/rules.h"

#include <fnmatch.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"

namespace nupa::sockets {
namespace {

constexpr int64_t kConnectMs = 1000;
constexpr int64_t kRememberNs = 60'000'000'000;
constexpr size_t kMostRemembered = 4096;

struct Rule {
  std::string domain;
  std::string type;
  std::string protocol;
};

struct Rules {
  bool any = true;
  std::vector<Rule> list;
};

bool matches(const std::string& pattern, const char* value) { return fnmatch(pattern.c_str(), value, 0) == 0; }

Rules read_rules() {
  Rules rules;
  const char* path = base::text_setting("NUPA_SOCKETS_CONFIG");
  if (path == nullptr) return rules;
  rules.any = false;
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) {
    std::fprintf(stderr, "nupa: NUPA_SOCKETS_CONFIG=%s: %s; no socket becomes an rsocket\n", path,
                 std::strerror(errno));
    return rules;
  }
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    line[std::strcspn(line, "#\n")] = 0;
    char program[64];
    char domain[64];
    char type[64];
    char protocol[64];
    if (std::sscanf(line, "%63s %63s %63s %63s", program, domain, type, protocol) != 4) continue;
    if (matches(program, program_invocation_short_name)) rules.list.push_back({domain, type, protocol});
  }
  std::fclose(file);
  return rules;
}

/// Family, port and address of a peer. Port 0 stands for the whole host.
std::string key_of(const sockaddr* peer, bool with_port) {
  std::string key(1, static_cast<char>(peer->sa_family));
  in_port_t port = 0;
  if (peer->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(peer);
    key.append(reinterpret_cast<const char*>(&in->sin_addr), sizeof in->sin_addr);
    port = in->sin_port;
  } else {
    const auto* in = reinterpret_cast<const sockaddr_in6*>(peer);
    key.append(reinterpret_cast<const char*>(&in->sin6_addr), sizeof in->sin6_addr);
    port = in->sin6_port;
  }
  if (!with_port) port = 0;
  key.append(reinterpret_cast<const char*>(&port), sizeof port);
  return key;
}

struct Memory {
  std::mutex mutex;
  std::map<std::string, int64_t> until;
};
Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

}  // namespace

bool allowed(int domain) {
  static const auto* rules = new Rules(read_rules());
  if (domain != AF_INET && domain != AF_INET6) return false;
  if (rules->any) return true;
  const char* name = domain == AF_INET ? "inet" : "inet6";
  for (const Rule& rule : rules->list) {
    if (matches(rule.domain, name) && matches(rule.type, "stream") && matches(rule.protocol, "tcp")) return true;
  }
  return false;
}

int64_t connect_ms() {
  static const int64_t ms = [] {
    const auto given = base::number_setting("NUPA_SOCKETS_CONNECT_MS", kConnectMs, 1, INT32_MAX);
    if (given) return static_cast<int64_t>(*given);
    std::fprintf(stderr, "nupa: %s; using %lld\n", given.error().what(), static_cast<long long>(kConnectMs));
    return int64_t{kConnectMs};
  }();
  return ms;
}

void read_settings() {
  allowed(AF_INET);
  connect_ms();
  memory();
}

void forget_plain() { new (&memory()) Memory; }

void remember_plain(const sockaddr* peer, bool whole_host) {
  Memory& known = memory();
  std::lock_guard lock(known.mutex);
  if (known.until.size() >= kMostRemembered) known.until.clear();
  known.until[key_of(peer, !whole_host)] = base::now_ns() + (whole_host ? kRememberNs : kRememberNs / 60);
}

bool known_plain(const sockaddr* peer) {
  Memory& known = memory();
  std::lock_guard lock(known.mutex);
  for (const bool with_port : {true, false}) {
    const auto found = known.until.find(key_of(peer, with_port));
    if (found == known.until.end()) continue;
    if (found->second > base::now_ns()) return true;
    known.until.erase(found);
  }
  return false;
}

}  // namespace nupa::sockets
