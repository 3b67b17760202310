// SPDX-License-Identifier: Apache-2.0
#include "netdev/search.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/gid.h"
#include "base/gid_text.h"
#include "base/log.h"
#include "netdev/control_socket.h"
#include "progress/descriptors.h"

namespace nupa::netdev {
namespace {

constexpr int64_t kFirstPauseNs = 10 * progress::kNsPerMs;
constexpr int64_t kLongestPauseNs = 1'000 * progress::kNsPerMs;
/// The pause after a rejection. Its reason may have been fixed since.
constexpr int64_t kRefusedPauseNs = 5'000 * progress::kNsPerMs;
constexpr int64_t kAnswerTimeoutNs = 500 * progress::kNsPerMs;

}  // namespace

std::string Search::Target::place() const { return node.empty() ? text_of(address) : node; }

Search::Search(progress::Loop& loop, std::string network, ConnectionManager& manager, const Gid& own, Hooks hooks)
    : loop_(loop), network_(std::move(network)), manager_(manager), own_(own), hooks_(std::move(hooks)) {}

void Search::add_node(const std::string& name) { targets_.emplace_back().target.node = name; }
void Search::add_address(const Gid& address) { targets_.emplace_back().target.address = address; }
void Search::add_neighbour(const Gid& address) {
  add_address(address);
  targets_.back().target.is_neighbour = true;
}

void Search::look(int64_t now) {
  for (Asked& one : targets_) look_at(one, now);
  std::erase_if(targets_, [](const Asked& one) { return one.next_ns == INT64_MAX; });
}

int64_t Search::next_deadline() const {
  int64_t next = INT64_MAX;
  for (const Asked& one : targets_)
    if (one.target.session == 0 && !hooks_.is_connected(one.target.peer)) next = std::min(next, one.next_ns);
  return next;
}

void Search::came_up(const Session& session) {
  for (Asked& one : targets_) {
    if (one.target.session != session.owner()) continue;
    one.target.peer = session.peer_info()->node;
    one.pause_ns = 0;
    one.target.why_not.clear();
  }
}

void Search::ended(const Session& session, int64_t now) {
  for (Asked& one : targets_) {
    if (one.target.session != session.owner()) continue;
    one.target.session = 0;
    one.target.why_not = session.why();
    one.pause_ns = session.was_refused() ? kRefusedPauseNs : longer_pause(one);
    one.next_ns = now + one.pause_ns;
    if (session.peer_info() != nullptr) one.target.peer = session.peer_info()->node;
    if (session.was_refused()) NUPA_WARN("net %s: %s", network_.c_str(), session.why().c_str());
  }
}

int64_t Search::longer_pause(const Asked& one) {
  return std::min(std::max(2 * one.pause_ns, kFirstPauseNs), kLongestPauseNs);
}

void Search::look_at(Asked& one, int64_t now) {
  if (one.target.session != 0) return;
  if (hooks_.is_connected(one.target.peer)) return one.asked.reset();
  Result<void> done;
  if (one.asked) {
    if (!progress::is_readable(one.asked->socket.get()) && now < one.next_ns) return;
    done = take_answer(one);
    one.asked.reset();
  } else {
    if (now < one.next_ns) return;
    done = ask(one);
    if (one.asked) one.next_ns = now + kAnswerTimeoutNs;
  }
  if (done) return;
  one.target.why_not = done.error().what();
  one.pause_ns = longer_pause(one);
  // An exited node of this host connects by itself when it starts again.
  const bool has_ended = done.error().code() == ENOENT || done.error().code() == ECONNREFUSED;
  one.next_ns = !one.target.node.empty() && has_ended ? INT64_MAX : now + one.pause_ns;
}

Result<void> Search::ask(Asked& one) {
  if (one.target.node.empty()) {
    auto route = manager_.find_route(one.target.address, 0, nullptr);
    if (!route) return tl::unexpected(route.error());
    return connect(one, service_of(network_), *route);
  }
  auto asked = ControlSocket::begin_to_ask(network_, one.target.node, R"({"do":"who"})");
  if (!asked) return tl::unexpected(asked.error());
  auto answer = loop_.watch(asked->get(), [this](uint32_t) { hooks_.look_soon(); });
  if (!answer) return tl::unexpected(answer.error());
  one.asked.emplace(Question{std::move(*asked), std::move(*answer)});
  return {};
}

Result<void> Search::take_answer(Asked& one) {
  auto answer = ControlSocket::take_answer(one.asked->socket.get());
  if (!answer) return tl::unexpected(answer.error());
  const auto gid = address_from(ControlSocket::field(*answer, "gid"));
  if (!gid) return fail(EPROTO, "cannot parse the answer of node ", one.target.node);
  auto route = manager_.find_address(own_);
  if (!route) return tl::unexpected(route.error());
  route->path.remote = *gid;
  return connect(one, service_of(network_, one.target.node), *route);
}

Result<void> Search::connect(Asked& one, uint64_t service, const ConnectionRoute& route) {
  auto session = hooks_.connect(service, route);
  if (!session) return tl::unexpected(session.error());
  one.target.session = *session;
  return {};
}

}  // namespace nupa::netdev
