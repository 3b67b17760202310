#pragma once
/// What the C handles are, and what all their functions have in common.
#include <nupa/ccl.h>
#include <nupa/export.h>

#include <memory>
#include <string>

#include "ccl/comm/communicator.h"

struct nupa_ccl_comm {
  std::unique_ptr<nupa::ccl::Communicator> communicator;
};

struct nupa_ccl_request {
  nupa::ccl::Communicator* communicator;
  std::shared_ptr<nupa::ccl::Job> job;
};

namespace nupa::ccl {

/// Keeps the text for nupa_ccl_error_text() and returns the value.
int say(int error, std::string text);
inline int say(const Fault& fault) { return say(fault.code, fault.text); }
/// What a call on a communicator has ended by.
int say(const Communicator& communicator, int error);

/// Does it, or begins it if there is a place for a request.
int run_or_start(nupa_ccl_comm* comm, Call& call, nupa_ccl_request** request);

}  // namespace nupa::ccl
