// SPDX-License-Identifier: Apache-2.0
#include "ccl/bootstrap/pmix.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "ccl/bootstrap/pmix_abi.h"
#include "ccl/bootstrap/kept_servers.h"
#include "progress/condition.h"
#include "progress/lifecycle.h"
#include "progress/waiter.h"

namespace nupa::ccl {
namespace {

using namespace pmix;

constexpr char kLibrary[] = "libpmix.so.2";
constexpr char kServerKey[] = "nupa.ccl.root";
constexpr int64_t kPauseNs = 20'000'000;
/// Time limit for values that the server has from the start of the job.
constexpr int64_t kSoonNs = 30'000'000'000;
/// How long the exit of the process waits for PMIx_Finalize().
constexpr int64_t kFinalizeNs = 10'000'000'000;

struct Library {
  Status (*init)(Process* self, void* info, size_t count);
  Status (*finalize)(const void* info, size_t count);
  Status (*put)(uint8_t scope, const char* key, Value* value);
  Status (*commit)();
  Status (*get)(const Process* of, const char* key, const void* info, size_t count, OnValue done, void* argument);
  const char* (*describe)(Status status);

  /// The library is never unloaded, because it has a thread.
  static Result<const Library*> load();

  Result<void> check(Status status, const char* what) const {
    if (status == kSuccess) return {};
    return fail(EIO, std::string("PMIx: ") + what + ": " + describe(status));
  }
};

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

Result<const Library*> Library::load() {
  // RTLD_GLOBAL: plugins of the library may look up its symbols in the global scope.
  void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return fail(ENOSYS, std::string("PMIx: cannot load ") + kLibrary +
                            " (Debian: package libpmix2): " + (why == nullptr ? "" : why));
  }
  static Library library;
  if (find(handle, "PMIx_Init", &library.init) && find(handle, "PMIx_Finalize", &library.finalize) &&
      find(handle, "PMIx_Put", &library.put) && find(handle, "PMIx_Commit", &library.commit) &&
      find(handle, "PMIx_Get_nb", &library.get) && find(handle, "PMIx_Error_string", &library.describe))
    return &library;
  return fail(ENOSYS, std::string(kLibrary) + " lacks functions of PMIx");
}

/// A request for a value. The caller and the callback share it, because the caller may have stopped waiting when the
/// answer arrives.
struct Question {
  std::mutex mutex;
  progress::Condition answered;
  std::optional<Status> status;
  std::string string;
  uint32_t number = 0;

  /// Returns kTimeout if there is no answer at `end_ns`.
  Status wait(int64_t end_ns) {
    std::unique_lock lock(mutex);
    answered.wait(
        lock, [this] { return status.has_value(); }, progress::Deadline::at(end_ns));
    return status.value_or(kTimeout);
  }
};

/// Called on a thread of the PMIx library, which owns `value`.
void on_value(Status status, const Value* value, void* argument) {
  const std::unique_ptr<std::shared_ptr<Question>> held(static_cast<std::shared_ptr<Question>*>(argument));
  Question& question = **held;
  const std::lock_guard lock(question.mutex);
  question.status = status;
  if (status == kSuccess && value != nullptr) {
    if (value->type == kString && value->string != nullptr) question.string = value->string;
    if (value->type == kUint32) question.number = value->number;
  }
  question.answered.notify_all();
}

}  // namespace

struct PmixJob::Client {
  const Library* library = nullptr;
  Process self{};
  uint32_t ranks = 0;
  std::mutex mutex;
  std::optional<UniqueId> server_id;  ///< set once it is known

  Result<std::shared_ptr<Question>> get(uint32_t rank, const char* key, int64_t limit_ns) const;
  Result<UniqueId> get_server_id(int64_t limit_ns) const;
  Result<void> put_server_id(const UniqueId& id) const;
};

/// Reads a value of a rank. Waits for a value that does not exist yet.
Result<std::shared_ptr<Question>> PmixJob::Client::get(uint32_t rank, const char* key, int64_t limit_ns) const {
  Process of = self;
  of.rank = rank;
  const int64_t end = base::now_ns() + limit_ns;
  while (true) {
    auto question = std::make_shared<Question>();
    auto held = std::make_unique<std::shared_ptr<Question>>(question);
    Status status = library->get(&of, key, nullptr, 0, on_value, held.get());
    if (status == kSuccess) {
      held.release();
      status = question->wait(end);
    }
    if (status == kSuccess) return question;
    // A server waits only seconds for a value of a rank, and not at all if the rank has published other values before.
    if (status != kNotFound && status != kTimeout) return tl::unexpected(library->check(status, key).error());
    if (base::now_ns() >= end) return fail(ETIMEDOUT, std::string("PMIx: rank 0 did not join: no value for ") + key);
    progress::sleep_for(kPauseNs);
  }
}

Result<UniqueId> PmixJob::Client::get_server_id(int64_t limit_ns) const {
  const auto value = get(0, kServerKey, limit_ns);
  if (!value) return tl::unexpected(value.error());
  return UniqueId::from_text((*value)->string);
}

Result<void> PmixJob::Client::put_server_id(const UniqueId& id) const {
  std::string text = id.text();
  Value value{};
  value.type = kString;
  value.string = text.data();
  if (auto put = library->check(library->put(kGlobal, kServerKey, &value), "PMIx_Put"); !put) return put;
  return library->check(library->commit(), "PMIx_Commit");
}

uint32_t PmixJob::rank() const { return client_->self.rank; }
uint32_t PmixJob::ranks() const { return client_->ranks; }

Result<PmixJob*> PmixJob::enter() {
  // The library has threads and a connection of the process that started it, which a forked child does not have.
  static std::atomic<int64_t> begun_in{-1};
  int64_t nobody = -1;
  const int64_t here = progress::process_generation();
  if (!begun_in.compare_exchange_strong(nobody, here) && nobody != here)
    return fail(ENODEV, "PMIx: the launcher knows only the parent of this forked process");
  static std::mutex mutex;
  static PmixJob* job = nullptr;
  const std::lock_guard lock(mutex);
  if (job != nullptr) return job;
  const auto library = Library::load();
  if (!library) return tl::unexpected(library.error());
  auto client = std::make_unique<Client>();
  client->library = *library;
  const auto entered = client->library->check(client->library->init(&client->self, nullptr, 0), "PMIx_Init");
  if (!entered) return tl::unexpected(entered.error());
  const auto size = client->get(kAnyRank, kJobSize, kSoonNs);
  if (!size) {
    client->library->finalize(nullptr, 0);
    return tl::unexpected(size.error());
  }
  if ((*size)->number == 0) {
    client->library->finalize(nullptr, 0);
    return fail(EPROTO, std::string("PMIx: ") + kJobSize + " is not a number of ranks");
  }
  client->ranks = (*size)->number;
  job = new PmixJob(client.release());
  // A forked child does not inherit exit actions, and has no connection to end.
  const progress::ExitAction finalize{[](void* of) {
                                        progress::put_off_exit(progress::Deadline::in_ns(kFinalizeNs));
                                        static_cast<const Client*>(of)->library->finalize(nullptr, 0);
                                      },
                                      job->client_};
  if (progress::at_exit(progress::ExitStage::kLauncher, finalize) != 0)
    std::fprintf(stderr,
                 "nupa: ccl: PMIx: no memory for the exit action: the launcher may report this process as failed\n");
  return job;
}

Result<UniqueId> PmixJob::exchange_server_id(int64_t limit_ns) {
  const std::lock_guard lock(client_->mutex);
  if (client_->server_id) return *client_->server_id;
  auto id = rank() == 0 ? start_server_here() : client_->get_server_id(limit_ns);
  if (!id) return id;
  if (rank() == 0)
    if (auto put = client_->put_server_id(*id); !put) return tl::unexpected(put.error());
  client_->server_id = *id;
  return id;
}

}  // namespace nupa::ccl
