// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/connection_manager.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "netdev/session.h"
#include "progress/loop.h"

namespace nupa::netdev {

/// Finds other nodes: those of this runtime directory, those of the hosts of the pool, and those at addresses that the
/// user named. It retries each one with growing pauses until it is connected. Runs on the node's thread.
class Search {
 public:
  /// The functions of the node that the search calls.
  struct Hooks {
    /// Connects and returns the session's owner. Returns the errors of Session::ask().
    std::function<Result<uint64_t>(uint64_t service, const ConnectionRoute& route)> connect;
    /// Returns whether the node of that name is connected.
    std::function<bool(const std::string& node)> is_connected;
    /// Called when an answer has arrived. The node must then call look() soon.
    std::function<void()> look_soon;
  };
  /// A node that the search looks for.
  struct Target {
    std::string node;           ///< name of a node in this runtime directory
    Gid address;                ///< address of the host, if there is no name
    bool is_neighbour = false;  ///< the address was not named: the pool's directory has it
    std::string peer;           ///< name of the node that was found there
    uint64_t session = 0;
    std::string why_not;  ///< reason of the last failure; empty if there was none

    std::string place() const;
  };

  /// `own` is the address at which processes of this host find this node's port.
  Search(progress::Loop& loop, std::string network, ConnectionManager& manager, const Gid& own, Hooks hooks);

  void add_node(const std::string& name);
  void add_address(const Gid& address);
  /// Adds the address of a host of the pool, which may have no node.
  void add_neighbour(const Gid& address);

  void look(int64_t now);
  /// Returns when look() has work to do. INT64_MAX: only at the next event.
  int64_t next_deadline() const;
  /// Called when the connection carries packets.
  void came_up(const Session& session);
  /// Called when the connection has ended.
  void ended(const Session& session, int64_t now);

  /// Calls `visit(target)` for each.
  template <class Visit>
  void each(Visit&& visit) const {
    for (const Asked& one : targets_) visit(one.target);
  }

 private:
  /// A question to another node of this runtime directory. The search does not block on the answer, because two nodes
  /// that question each other would then block each other.
  struct Question {
    base::UniqueFd socket;
    std::unique_ptr<progress::Loop::Watch> answer;
  };
  struct Asked {
    Target target;
    std::optional<Question> asked;
    int64_t next_ns = 0;
    int64_t pause_ns = 0;
  };

  void look_at(Asked& one, int64_t now);
  Result<void> ask(Asked& one);
  Result<void> take_answer(Asked& one);
  Result<void> connect(Asked& one, uint64_t service, const ConnectionRoute& route);
  static int64_t longer_pause(const Asked& one);

  progress::Loop& loop_;
  const std::string network_;
  ConnectionManager& manager_;
  const Gid own_;
  const Hooks hooks_;
  std::deque<Asked> targets_;
};

}  // namespace nupa::netdev
