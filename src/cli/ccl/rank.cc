// SPDX-License-Identifier: Apache-2.0
#include "cli/ccl/rank.h"

#include <fmt/core.h>

#include "cli/waiting.h"

namespace nupa::cli::collectives {

void complain(const std::string& during) { fmt::print(stderr, "nupa: ccl: {}: {}\n", during, nupa_ccl_error_text()); }

std::unique_ptr<Rank> Rank::join(uint32_t expected) {
  nupa_ccl_comm* comm = nullptr;
  int error = 0;
  {
    const Waiting waiting("the other ranks of the job");
    error = nupa_ccl_comm_init(&comm);
  }
  if (error != 0) {
    complain("cannot join the job");
    return nullptr;
  }
  std::unique_ptr<Rank> joined(new Rank(comm));
  nupa_ccl_comm_rank(comm, &joined->rank_);
  nupa_ccl_comm_size(comm, &joined->ranks_);
  if (expected != 0 && expected != joined->ranks_) {
    if (joined->is_first())
      fmt::print(stderr, "nupa: ccl: --ranks {}: this process belongs to a job of {} ranks\n", expected,
                 joined->ranks_);
    return nullptr;
  }
  return joined;
}

Rank::~Rank() { nupa_ccl_comm_destroy(comm_); }

int Rank::maximum(double* values, size_t count) const {
  return nupa_ccl_all_reduce(values, values, count, NUPA_CCL_FLOAT64, NUPA_CCL_MAX, comm_, nullptr);
}

}  // namespace nupa::cli::collectives
