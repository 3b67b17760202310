// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>

#include "host/node.h"
#include "core/qp_table.h"
#include "core/transports.h"

namespace nupa::core {

/// The slots of this process, which its queue pair numbers contain. The first one is the node's. When all are full, the
/// next queue pair takes a further slot: a name of the process for its peers, tables that they read, and resources of
/// the transports. A slot stays until the process closes. Any thread.
class Slots {
 public:
  Slots(host::Node& node, Transports& transports, QpTable& qps) : node_(node), transports_(transports), qps_(qps) {}

  /// Returns a free index of `qps`. ENOMEM: there are kMaxQp queue pairs, or no memory; ENOSPC: no further slot is
  /// free. Other errors are those of Transports::reserve_further() and host::Node::take_slot().
  Result<uint32_t> take_qp();

 private:
  [[gnu::noinline]] Result<void> take_slot();

  host::Node& node_;
  Transports& transports_;
  QpTable& qps_;
  std::mutex mutex_;  ///< held in take_slot()
};

}  // namespace nupa::core
