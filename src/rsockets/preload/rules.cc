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
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"

namespace nupa::sockets {
namespace {

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

struct Settings {
  Rules rules;
  int64_t connect_ms = 0;
};

bool matches(const std::string& pattern, const char* value) { return fnmatch(pattern.c_str(), value, 0) == 0; }

Result<Rules> read_rules() {
  Rules rules;
  const char* path = base::text_setting("NUPA_SOCKETS_CONFIG");
  if (path == nullptr) return rules;
  if (const auto readable = base::check_setting(*base::find_setting("NUPA_SOCKETS_CONFIG")); !readable)
    return tl::unexpected(readable.error());
  rules.any = false;
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return fail(EINVAL, "NUPA_SOCKETS_CONFIG=", path, ": ", std::strerror(errno));
  char line[256];
  int number = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    ++number;
    const bool whole = std::strchr(line, '\n') != nullptr || std::feof(file) != 0;
    line[std::strcspn(line, "#\n")] = 0;
    char program[64];
    char domain[64];
    char type[64];
    char protocol[64];
    const int words = std::sscanf(line, "%63s %63s %63s %63s", program, domain, type, protocol);
    if (words <= 0 && whole) continue;  // empty, or a comment
    if (words < 4 || !whole) {
      std::fclose(file);
      return fail(EINVAL, "NUPA_SOCKETS_CONFIG=", path, ": line ", number, " is not `program domain type protocol`");
    }
    if (matches(program, program_invocation_short_name)) rules.list.push_back({domain, type, protocol});
  }
  std::fclose(file);
  return rules;
}

/// The settings of the program's start.
const Result<Settings>& settings() {
  static const auto* const read = new Result<Settings>([]() -> Result<Settings> {
    auto rules = read_rules();
    if (!rules) return tl::unexpected(rules.error());
    const auto ms = base::number_setting("NUPA_SOCKETS_CONNECT_MS");
    if (!ms) return tl::unexpected(ms.error());
    return Settings{std::move(*rules), static_cast<int64_t>(*ms)};
  }());
  return *read;
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
  if (!settings() || (domain != AF_INET && domain != AF_INET6)) return false;
  const Rules& rules = settings()->rules;
  if (rules.any) return true;
  const char* name = domain == AF_INET ? "inet" : "inet6";
  for (const Rule& rule : rules.list) {
    if (matches(rule.domain, name) && matches(rule.type, "stream") && matches(rule.protocol, "tcp")) return true;
  }
  return false;
}

bool is_misconfigured() {
  if (settings()) return false;
  [[maybe_unused]] static const int printed =
      std::fprintf(stderr, "nupa: sockets: %s; TCP sockets fail with EINVAL\n", settings().error().what());
  return true;
}

int64_t connect_ms() { return settings() ? settings()->connect_ms : 0; }

void read_settings() {
  settings();
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
