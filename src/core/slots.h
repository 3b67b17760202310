// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>

#include "host/node.h"
#include "core/qp_table.h"
#include "core/transports.h"

namespace nupa::core {

/// The slots of this process, whose numbers its queue pairs have. It has the node's from the start. A queue pair that
/// finds all of them full takes a further one: a name of the process for its peers, tables for them to read, and what
/// the transports need of it. A slot stays until the process closes. Any thread.
class Slots {
 public:
  Slots(host::Node& node, Transports& transports, QpTable& qps) : node_(node), transports_(transports), qps_(qps) {}

  /// A free index of `qps`. ENOMEM: there are kMaxQp queue pairs, or no memory; ENOSPC: no further slot is free; else
  /// what Transports::reserve_further() and host::Node::take_slot() say.
  Result<uint32_t> take_qp();

 private:
  [[gnu::noinline]] Result<void> take_slot();

  host::Node& node_;
  Transports& transports_;
  QpTable& qps_;
  std::mutex mutex_;  ///< of take_slot()
};

}  // namespace nupa::core
