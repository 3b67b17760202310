// SPDX-License-Identifier: Apache-2.0
/// Stands in for libpmix.so.2 in tests: a server that answers as it is told.
#include <cstdint>
#include <cstring>

#include "ccl/bootstrap/pmix_abi.h"
#include "ccl_pmix_stub.h"

#define STUB_EXPORT __attribute__((visibility("default")))

using nupa::ccl::pmix::OnValue;
using nupa::ccl::pmix::Process;
using nupa::ccl::pmix::Status;
using nupa::ccl::pmix::Value;

namespace {

nupa::ccl::PmixStub stub;

void answer(OnValue done, void* argument) {
  Value value{};
  value.type = nupa::ccl::pmix::kString;
  value.string = stub.root;
  done(nupa::ccl::pmix::kSuccess, &value, argument);
}

}  // namespace

extern "C" {

STUB_EXPORT nupa::ccl::PmixStub* nupa_pmix_stub() { return &stub; }

STUB_EXPORT Status PMIx_Init(Process* self, void*, size_t) {
  ++stub.inits;
  std::strcpy(self->job, "job");
  self->rank = stub.rank;
  return stub.init_status;
}

STUB_EXPORT Status PMIx_Finalize(const void*, size_t) {
  ++stub.finalizes;
  if (stub.on_finalize != nullptr) stub.on_finalize();
  return 0;
}

STUB_EXPORT Status PMIx_Put(uint8_t scope, const char* key, Value* value) {
  ++stub.puts;
  stub.put_scope = scope;
  std::strncpy(stub.put_key, key, sizeof stub.put_key - 1);
  if (value->type == nupa::ccl::pmix::kString) std::strncpy(stub.root, value->string, sizeof stub.root - 1);
  return stub.put_status;
}

STUB_EXPORT Status PMIx_Commit() {
  stub.committed_puts = stub.puts;
  return 0;
}

STUB_EXPORT Status PMIx_Get_nb(const Process* of, const char* key, const void*, size_t, OnValue done, void* argument) {
  if (std::strcmp(key, nupa::ccl::pmix::kJobSize) == 0) {
    if (of->rank != nupa::ccl::pmix::kAnyRank || std::strcmp(of->job, "job") != 0) return -1;
    Value value{};
    value.type = stub.size_type;
    value.number = stub.ranks;
    done(stub.size_status, &value, argument);
    return 0;
  }
  ++stub.gets;
  if (of->rank != 0) return -1;
  if (stub.get_status != 0) return stub.get_status;
  if (stub.not_found > 0) {
    --stub.not_found;
    done(nupa::ccl::pmix::kNotFound, nullptr, argument);
    return 0;
  }
  if (stub.is_silent) {
    stub.late_done = done;
    stub.late_argument = argument;
    return 0;
  }
  answer(done, argument);
  return 0;
}

STUB_EXPORT const char* PMIx_Error_string(Status) { return "the stub's error"; }

STUB_EXPORT void nupa_pmix_stub_answer_late() { answer(stub.late_done, stub.late_argument); }

}  // extern "C"
