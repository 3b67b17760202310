#pragma once
#include <nupa/result.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cm/runtime_dir.h"

namespace nupa::netdev {

/// A node's socket in the runtime directory, where other nodes of it and `nupa net` ask. A question and its answer are
/// a message each. An answer that is too long for a message is written to a file, and its descriptor is sent. Only
/// processes of the same user can reach it.
class Door {
 public:
  /// EEXIST: a node of this name is there; others: those of RuntimeDir and sockets.
  static Result<std::unique_ptr<Door>> open(const std::string& network, const std::string& node);
  ~Door();

  /// The answer to a question; none: it comes by answer_waiting(). Of more than kMostGuests that wait for it, the one
  /// that came first is hung up on.
  using Answer = std::function<std::optional<std::string>(const std::string& question)>;

  /// Readable when serve() has something to do.
  int fd() const { return epoll_.get(); }
  /// Takes new guests and answers those whose question is there. Never waits: a guest may ask later, and hangs up or
  /// waits as it likes. Of more than kMostGuests that have not asked, the one that came first is hung up on.
  void serve(const Answer& answer);
  /// The answer to all whose question had none at once.
  void answer_waiting(const std::string& answer);

  static constexpr size_t kMostGuests = 64;
  /// The longest message. The kernel takes about 200 KiB (net.core.wmem_default).
  static constexpr size_t kMaxMessage = 128 * 1024;
  /// The longest answer that is read: 1024 peers with 16 addresses each take less than 2 MiB.
  static constexpr size_t kMaxAnswer = 64 * 1024 * 1024;

  /// A field of a question or an answer, which are JSON objects. Empty: it is not there, or is no text.
  static std::string field(const std::string& message, const char* name);

  /// Nodes of a network, or of all where it is empty: network and name.
  static std::vector<std::pair<std::string, std::string>> list(const std::string& network);
  /// Asks, and gives what becomes readable when the answer is there or the node has gone. ENOENT, ECONNREFUSED: there
  /// is no such node.
  static Result<base::UniqueFd> begin_to_ask(const std::string& network, const std::string& node,
                                             const std::string& question);
  /// ECONNRESET: the node ended before it answered, or has not answered yet. EMFILE: the answer is in a file, and this
  /// process may not open another one; EPROTO: the descriptor is not such a file.
  static Result<std::string> take_answer(int asked);
  /// Both; ETIMEDOUT: the node does not answer in time.
  static Result<std::string> ask(const std::string& network, const std::string& node, const std::string& question,
                                 int patience_ms);

 private:
  Door() = default;
  bool watch(int fd);
  /// There is no descriptor for a guest: the listener is left out for a while.
  void pause();
  /// True if the guest was served, waits for its answer or hung up.
  bool serve_guest(base::UniqueFd& guest, const Answer& answer);

  std::unique_ptr<cm::RuntimeDir> dir_;
  std::string name_;
  base::UniqueFd listener_;
  base::UniqueFd again_;               ///< a timer: the listener is looked at again
  base::UniqueFd epoll_;               ///< the timer, the listener and all guests that have not asked
  std::list<base::UniqueFd> guests_;   ///< those that have not asked yet, in the order in which they came
  std::list<base::UniqueFd> waiting_;  ///< those that have asked, and whose answer comes later
};

}  // namespace nupa::netdev
