#pragma once
/// Whether a NUPA process on another host still lives. The kernel's communication manager outlives its programs and
/// disconnects for those that died; here there is nobody left to do so, and an end without anything under way would
/// never learn it. So processes with connections between them ask each other, in management datagrams of a vendor's
/// class (IBTA 16.5), once a second and for all connections together:
///
///   24 magic(64)   32 UDP port that was asked(32)   36 reserved(32)   40 instance of the one that answers(64)
///
/// Whoever has a dead process's port answers too, perhaps from another one, and is told apart by its instance. Which
/// instance a connection was made with no message tells, so one that is new may know of some of the connections, of all
/// or of none: then each is confirmed (ConnectionEngine::confirm()).
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
/// Nothing: it is none.
std::optional<Probe> read_probe(const Mad& mad);

/// What the answers of one process, and their absence, tell.
class PeerPulse {
 public:
  static constexpr int64_t kPauseNs = INT64_C(1'000'000'000);
  /// So many questions, one each kPauseNs, may remain without any sign: a process may be stopped for a while. Time does
  /// not count, because it goes on while this process is stopped and asks nothing.
  static constexpr uint32_t kMostUnanswered = 30;

  void asked() { ++unanswered_; }
  /// True: it is another process than before, or the first one, and connections are to be confirmed.
  bool heard(uint64_t instance) {
    refused_ = 0;
    unanswered_ = 0;
    if (instance_ != instance) {
      instance_ = instance;
      confirmations_ = kConfirmations;
    }
    return confirmations_ > 0 && confirmations_-- > 0;
  }
  /// Its host says that nobody has the port. False: twice in a row, it has ended.
  bool refused() { return ++refused_ < 2; }
  bool is_silent() const { return unanswered_ > kMostUnanswered; }

 private:
  static constexpr uint32_t kConfirmations = 3;  ///< messages get lost
  uint64_t instance_ = 0;
  uint32_t confirmations_ = 0;
  uint32_t unanswered_ = 0;
  uint32_t refused_ = 0;
};

}  // namespace nupa::cm
