// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Checks whether a NUPA process on another host is alive. The kernel's communication manager outlives its programs and
/// disconnects for those that died. Here no such process remains, so a peer without requests in flight would never
/// notice the death. Processes with connections between them therefore probe each other once a second, for all
/// connections together. The probes are management datagrams of a vendor's class (IBTA 16.5):
///
///     24 magic(64)   32 probed UDP port(32)   36 reserved(32)   40 instance of the answering process(64)
///
/// A new process on a dead process's port answers, too, perhaps from another port. Its instance distinguishes them. No
/// message holds the instance that a connection was made with, so a new instance may have some of the connections, all
/// or none. Each connection is then confirmed (ConnectionEngine::confirm()).
#include <cstring>
#include <optional>

#include "cm/engine/mad.h"

namespace nupa::cm {

struct Probe {
  bool is_echo = false;
  uint32_t port = 0;
  uint64_t instance = 0;
};
Mad write_probe(const Probe& probe);
/// Returns nothing if the message is no probe.
std::optional<Probe> read_probe(const Mad& mad);

/// Evaluates the answers of one process and their absence.
class PeerPulse {
 public:
  static constexpr int64_t kPauseNs = INT64_C(1'000'000'000);
  /// The number of probes, one each kPauseNs, that may remain unanswered, since a process may be stopped for a while.
  /// Probes are counted and not time, because time goes on while this process is stopped and sends no probes.
  static constexpr uint32_t kMostUnanswered = 30;

  void asked() { ++unanswered_; }
  /// Records an answer. True if it comes from the first process or from a new one; connections must then be confirmed.
  bool heard(uint64_t instance) {
    refused_ = 0;
    unanswered_ = 0;
    if (instance_ != instance) {
      instance_ = instance;
      confirmations_ = kConfirmations;
    }
    return confirmations_ > 0 && confirmations_-- > 0;
  }
  /// Records that the host reports a closed port. Returns false at the second report in a row: the process has ended.
  bool refused() { return ++refused_ < 2; }
  bool is_silent() const { return unanswered_ > kMostUnanswered; }

 private:
  static constexpr uint32_t kConfirmations = 3;  ///< more than one, as messages may be lost
  uint64_t instance_ = 0;
  uint32_t confirmations_ = 0;
  uint32_t unanswered_ = 0;
  uint32_t refused_ = 0;
};

}  // namespace nupa::cm
