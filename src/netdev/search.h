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

/// The nodes that this one looks for: those of this runtime directory and those at addresses that the user named. Each
/// is asked again and again, with pauses that grow, until it is connected. One thread: the node's.
class Search {
 public:
  /// What the search needs of the node.
  struct Hooks {
    /// Connects; gives the session's owner. Errors: as Session::ask().
    std::function<Result<uint64_t>(uint64_t service, const ConnectionRoute& route)> connect;
    /// Whether the node of that name is connected.
    std::function<bool(const std::string& node)> is_connected;
    /// An answer is there: look() is to be called soon.
    std::function<void()> look_soon;
  };
  /// A node that is looked for.
  struct Target {
    std::string node;  ///< of this runtime directory
    Gid address;       ///< else: where its host is
    std::string peer;  ///< the node that was found there
    uint64_t session = 0;
    std::string why_not;  ///< the last reason of a failure; empty: none yet

    std::string place() const;
  };

  /// `own`: the address by which processes of this host find this one's port.
  Search(progress::Loop& loop, std::string network, ConnectionManager& manager, const Gid& own, Hooks hooks);

  void add_node(const std::string& name);
  void add_address(const Gid& address);

  void look(int64_t now);
  /// When look() has something to do. INT64_MAX: with the next event only.
  int64_t next_deadline() const;
  /// The connection carries packets.
  void came_up(const Session& session);
  /// The connection is over.
  void ended(const Session& session, int64_t now);

  /// Calls `visit(target)` for each.
  template <class Visit>
  void each(Visit&& visit) const {
    for (const Asked& one : targets_) visit(one.target);
  }

 private:
  /// A question to another node of this runtime directory. The answer is not waited for: two nodes that ask each other
  /// at once would wait for each other.
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
