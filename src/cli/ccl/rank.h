// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/ccl.h>

#include <cstdint>
#include <memory>
#include <string>

namespace nupa::cli::collectives {

/// This process as a rank of its job, on a communicator of all ranks.
class Rank {
 public:
  /// Joins the job. Returns null, and prints an error, if this process is not a rank or the ranks do not find each
  /// other. `expected`: the number of ranks; 0: any.
  static std::unique_ptr<Rank> join(uint32_t expected);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  nupa_ccl_comm* comm() const { return comm_; }
  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return ranks_; }
  /// True on the rank that prints for all.
  bool is_first() const { return rank_ == 0; }

  /// Stores the largest of all ranks' values on every rank, so that decisions based on it are the same. Returns 0 or an
  /// errno value.
  int maximum(double* values, size_t count) const;

 private:
  explicit Rank(nupa_ccl_comm* comm) : comm_(comm) {}

  nupa_ccl_comm* comm_;
  uint32_t rank_ = 0;
  uint32_t ranks_ = 0;
};

/// Prints the library's last error, and the step that has failed, to standard error.
void complain(const std::string& during);

}  // namespace nupa::cli::collectives
