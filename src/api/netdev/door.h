#pragma once
#include <nupa/result.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cm/runtime_dir.h"

namespace nupa::netdev {

/// A node's socket in the runtime directory, where other nodes of it and `nupa net` ask. A question and its answer are
/// a message each. Only processes of the same user can reach it.
class Door {
 public:
  /// EEXIST: a node of this name is there; others: those of RuntimeDir and sockets.
  static Result<std::unique_ptr<Door>> open(const std::string& network, const std::string& node);
  ~Door();

  /// Readable when somebody asks.
  int fd() const { return listener_.get(); }
  /// Answers all who ask at this moment. Those who are slow to ask are not waited for.
  void serve(const std::function<std::string(const std::string& question)>& answer);

  /// Nodes of a network, or of all where it is empty: network and name.
  static std::vector<std::pair<std::string, std::string>> list(const std::string& network);
  /// Asks, and gives what becomes readable when the answer is there or the node has gone. ENOENT, ECONNREFUSED: there
  /// is no such node.
  static Result<base::UniqueFd> begin_to_ask(const std::string& network, const std::string& node,
                                             const std::string& question);
  /// ECONNRESET: the node has gone without an answer, or has given none yet.
  static Result<std::string> take_answer(int asked);
  /// Both; ETIMEDOUT: the node does not answer in time.
  static Result<std::string> ask(const std::string& network, const std::string& node, const std::string& question,
                                 int patience_ms);

 private:
  Door() = default;
  std::unique_ptr<cm::RuntimeDir> dir_;
  std::string name_;
  base::UniqueFd listener_;
};

}  // namespace nupa::netdev
