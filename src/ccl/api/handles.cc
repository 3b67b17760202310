#include "ccl/api/handles.h"

#include <cerrno>
#include <cstring>

namespace nupa::ccl {
namespace {

std::string& text_of_thread() {
  thread_local std::string text;
  return text;
}

}  // namespace

int say(int error, std::string text) {
  text_of_thread() = std::move(text);
  return error;
}

int say(const Communicator& communicator, int error) {
  if (error == 0) return 0;
  const Cause cause = communicator.ended();
  return say(error, cause.error == error ? communicator.text_of(cause) : std::strerror(error));
}

int run_or_start(nupa_ccl_comm* comm, Call& call, nupa_ccl_request** request) {
  Communicator& communicator = *comm->communicator;
  if (request == nullptr) {
    const int error = communicator.run(call);
    return __builtin_expect(error == 0, 1) ? 0 : say(communicator, error);
  }
  auto job = communicator.start(std::move(call));
  if (!job) return say(job.error());
  *request = new nupa_ccl_request{&communicator, std::move(*job)};
  return 0;
}

}  // namespace nupa::ccl

using namespace nupa::ccl;

extern "C" {

NUPA_EXPORT const char* nupa_ccl_error_text(void) { return text_of_thread().c_str(); }

NUPA_EXPORT int nupa_ccl_wait(nupa_ccl_request* request) {
  if (request == nullptr) return say(EINVAL, "no request");
  const std::unique_ptr<nupa_ccl_request> owned(request);
  return say(*request->communicator, request->communicator->wait(request->job));
}

NUPA_EXPORT int nupa_ccl_test(nupa_ccl_request* request, int* done) {
  if (request == nullptr || done == nullptr) return say(EINVAL, "no request, or no place for the answer");
  *done = request->job->is_done() ? 1 : 0;
  return 0;
}

}  // extern "C"
