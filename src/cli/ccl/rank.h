#pragma once
#include <nupa/ccl.h>

#include <cstdint>
#include <memory>
#include <string>

namespace nupa::cli::collectives {

/// This process as a rank of its job, on a communicator of all ranks.
class Rank {
 public:
  /// Null: it is none, or the ranks do not meet; said on standard error. `expected`: how many there should be; 0: any.
  static std::unique_ptr<Rank> join(uint32_t expected);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  nupa_ccl_comm* comm() const { return comm_; }
  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return ranks_; }
  /// The one that speaks for all.
  bool is_first() const { return rank_ == 0; }

  /// The largest of all ranks' values, which all of them get: what they decide by it they decide alike. An errno value.
  int maximum(double* values, size_t count) const;

 private:
  explicit Rank(nupa_ccl_comm* comm) : comm_(comm) {}

  nupa_ccl_comm* comm_;
  uint32_t rank_ = 0;
  uint32_t ranks_ = 0;
};

/// Says on standard error what the library has refused or has failed at, and during what.
void complain(const std::string& during);

}  // namespace nupa::cli::collectives
