#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "ccl/bootstrap/rendezvous.h"

namespace nupa::ccl {

/// One meeting, as its root knows it: who is there and who is not.
class Gathering {
 public:
  /// `deadline`: CLOCK_MONOTONIC ns, when those who are there are told who is not.
  Gathering(uint32_t world, int64_t deadline) : deadline_(deadline), cards_(world), present_(world) {}

  /// EINVAL: the others say that there are not so many ranks; EEXIST: somebody is this rank.
  Result<void> join(uint32_t rank, uint32_t world, Card card);
  /// Somebody else may be this rank again.
  void leave(uint32_t rank);
  bool is_empty() const { return came_ == 0; }
  bool is_complete() const { return came_ == cards_.size(); }
  int64_t deadline() const { return deadline_; }
  void end_by(int64_t deadline) { deadline_ = std::min(deadline_, deadline); }
  /// All cards, as rendezvous_wire.h has them.
  std::string table() const;
  /// For people: "missing: rank 1, 4".
  std::string missing() const;

 private:
  int64_t deadline_;
  std::vector<Card> cards_;
  std::vector<bool> present_;
  uint32_t came_ = 0;
};

}  // namespace nupa::ccl
