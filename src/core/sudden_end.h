#pragma once
#include <memory>

#include "base/unique_fd.h"
#include "cm/node.h"
#include "nupa/result.h"

namespace nupa::core {

/// A process that ends by _exit(), as the children of servers do, runs no exit handler. An adapter still acknowledges
/// what it has received, and the kernel ends its connections. Where `nupa run` started the program, its preload library
/// sees the call, and the service thread does the same here: it is there whatever locks the caller holds, in a signal
/// handler too. The end is put off by 100 ms at most.
class SuddenEnd {
 public:
  static Result<std::unique_ptr<SuddenEnd>> watch(cm::Node& node);
  ~SuddenEnd();

 private:
  SuddenEnd(cm::Node& node, base::UniqueFd asked, base::UniqueFd done);
  static void before_exit();

  cm::Node& node_;
  int pid_;
  base::UniqueFd asked_;
  base::UniqueFd done_;
};

}  // namespace nupa::core
