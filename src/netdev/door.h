#pragma once
#include <nupa/result.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "progress/loop.h"
#include "runtime/directory.h"

namespace nupa::netdev {

/// A node's socket in the runtime directory, where other nodes of it and `nupa net` ask. A question and its answer are
/// a message each. An answer that is too long for a message is written to a file, and its descriptor is sent. Only
/// processes of the same user can reach it.
class Door {
 public:
  /// The answer to a question; none: it comes by answer_waiting(). Of more than kMostGuests that wait for it, the one
  /// that came first is hung up on.
  using Answer = std::function<std::optional<std::string>(const std::string& question)>;

  /// The loop takes guests from now on and has `answer` called with their questions. It never waits for a guest, who
  /// may ask later, and hangs up or waits as it likes. Of more than kMostGuests that have not asked, the one that came
  /// first is hung up on. `clock`: the loop's. EEXIST: a node of this name is there; others: those of
  /// runtime::Directory, sockets and loops.
  static Result<std::unique_ptr<Door>> open(progress::Loop& loop, const std::string& network, const std::string& node,
                                            Answer answer, const progress::Clock& clock = progress::system_clock());
  ~Door();

  /// The answer to all whose question had none at once. On the loop's thread.
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
  struct Guest {
    base::UniqueFd socket;
    std::unique_ptr<progress::Loop::Watch> watch;
  };
  using Guests = std::list<Guest>;

  Door(progress::Loop& loop, Answer answer, const progress::Clock& clock)
      : loop_(loop), clock_(clock), answer_(std::move(answer)) {}
  void take_guests();
  /// It is no guest after this: it is answered, waits for its answer, or is hung up on.
  void serve(Guests::iterator guest);

  progress::Loop& loop_;
  const progress::Clock& clock_;
  const Answer answer_;
  std::unique_ptr<runtime::Directory> dir_;
  std::string name_;
  base::UniqueFd listener_;
  std::unique_ptr<progress::Loop::Watch> arrivals_;
  Guests guests_;  ///< those that have not asked yet, in the order in which they came
  /// Those that have asked, and whose answer comes later. Nothing that they say, and no end, keeps the loop awake.
  std::list<base::UniqueFd> waiting_;
};

}  // namespace nupa::netdev
