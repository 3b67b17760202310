// SPDX-License-Identifier: Apache-2.0
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

/// The control socket of a node in the runtime directory. Other nodes of this host and `nupa net` send questions to it.
/// A question and its answer are one message each. An answer that is too long for a message is written to a file whose
/// descriptor is sent. Only processes of the same user can connect.
class ControlSocket {
 public:
  /// Returns the answer to a question. If it returns nothing, answer_waiting() sends the answer later. If more than
  /// kMaxClients clients wait for an answer, the oldest one is disconnected.
  using Answer = std::function<std::optional<std::string>(const std::string& question)>;

  /// Opens the socket. From then on the loop accepts clients and calls `answer` with their questions. It never waits
  /// for a client, which may send its question later, disconnect or stay. If more than kMaxClients clients have not
  /// asked yet, the oldest one is disconnected. `clock` is the loop's clock. Returns EEXIST if a node of this name
  /// exists, or the errors of runtime::Directory, sockets and loops.
  static Result<std::unique_ptr<ControlSocket>> open(progress::Loop& loop, const std::string& network,
                                                     const std::string& node, Answer answer,
                                                     const progress::Clock& clock = progress::system_clock());
  ~ControlSocket();

  /// Sends the answer to all clients that wait for one. Must be called on the loop's thread.
  void answer_waiting(const std::string& answer);

  static constexpr size_t kMaxClients = 64;
  /// The longest message in bytes. The kernel's limit is about 200 KiB (net.core.wmem_default).
  static constexpr size_t kMaxMessage = 128 * 1024;
  /// The longest answer that is read, in bytes. 1024 peers with 16 addresses each take less than 2 MiB.
  static constexpr size_t kMaxAnswer = 64 * 1024 * 1024;

  /// Returns a field of a question or an answer, which are JSON objects. Empty if there is no such text field.
  static std::string field(const std::string& message, const char* name);

  /// Lists the nodes of a network as pairs of network and name. An empty `network` selects all networks.
  static std::vector<std::pair<std::string, std::string>> list(const std::string& network);
  /// Sends a question. The returned descriptor becomes readable when the answer has arrived or the node has exited.
  /// Returns ENOENT or ECONNREFUSED if there is no such node.
  static Result<base::UniqueFd> begin_to_ask(const std::string& network, const std::string& node,
                                             const std::string& question);
  /// Receives the answer. Returns ECONNRESET if the node exited before it answered, or has not answered yet. EMFILE:
  /// the answer is in a file, and this process cannot open another one. EPROTO: the descriptor is no such file.
  static Result<std::string> take_answer(int asked);
  /// Sends a question and receives the answer. Returns ETIMEDOUT if the node does not answer in time.
  static Result<std::string> ask(const std::string& network, const std::string& node, const std::string& question,
                                 int timeout_ms);

 private:
  struct Client {
    base::UniqueFd socket;
    std::unique_ptr<progress::Loop::Watch> watch;
  };
  using Clients = std::list<Client>;

  ControlSocket(progress::Loop& loop, Answer answer, const progress::Clock& clock)
      : loop_(loop), clock_(clock), answer_(std::move(answer)) {}
  void take_clients();
  /// Answers the client, moves it to the waiting ones, or disconnects it. It is not in clients_ afterwards.
  void serve(Clients::iterator client);

  progress::Loop& loop_;
  const progress::Clock& clock_;
  const Answer answer_;
  std::unique_ptr<runtime::Directory> dir_;
  std::string name_;
  base::UniqueFd listener_;
  std::unique_ptr<progress::Loop::Watch> arrivals_;
  Clients clients_;  ///< clients that have not asked yet, in the order of their arrival
  /// Clients whose answer is sent later. The loop does not watch them, so neither further data nor a disconnect wakes
  /// it.
  std::list<base::UniqueFd> waiting_;
};

}  // namespace nupa::netdev
