#include "ccl/start/pmix.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "ccl/start/pmix_abi.h"
#include "ccl/start/roots.h"

namespace nupa::ccl {
namespace {

using namespace pmix;

constexpr char kLibrary[] = "libpmix.so.2";
constexpr char kRootKey[] = "nupa.ccl.root";
constexpr useconds_t kPauseUs = 20'000;
/// What a server has of the job from the beginning, it has to tell by then.
constexpr int64_t kSoonNs = 30'000'000'000;

struct Library {
  Status (*init)(Process* self, void* info, size_t count);
  Status (*finalize)(const void* info, size_t count);
  Status (*put)(uint8_t scope, const char* key, Value* value);
  Status (*commit)();
  Status (*get)(const Process* of, const char* key, const void* info, size_t count, OnValue done, void* argument);
  const char* (*describe)(Status status);

  /// Never unloaded: it has a thread.
  static Outcome<const Library*> load();

  Outcome<void> check(Status status, const char* what) const {
    if (status == kSuccess) return {};
    return fault(EIO, std::string("PMIx: ") + what + ": " + describe(status));
  }
};

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

Outcome<const Library*> Library::load() {
  // Plugins of the library may look for it among what is visible to all.
  void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return fault(ENOSYS, std::string("a PMIx server started this process, which needs ") + kLibrary +
                             " (Debian: libpmix2) to ask it: " + (why == nullptr ? "" : why));
  }
  static Library library;
  if (find(handle, "PMIx_Init", &library.init) && find(handle, "PMIx_Finalize", &library.finalize) &&
      find(handle, "PMIx_Put", &library.put) && find(handle, "PMIx_Commit", &library.commit) &&
      find(handle, "PMIx_Get_nb", &library.get) && find(handle, "PMIx_Error_string", &library.describe))
    return &library;
  return fault(ENOSYS, std::string(kLibrary) + " is not PMIx");
}

/// Something that was asked for. Who asked may be gone when the answer comes: both have it.
struct Question {
  std::mutex mutex;
  std::condition_variable answered;
  std::optional<Status> status;
  std::string string;
  uint32_t number = 0;
};

/// In a thread of the library's; `value` is its own.
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

/// One process enters, gets and leaves after the other.
std::mutex& turn() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

/// Of this process's job, once it is known.
std::optional<UniqueId>& known_root() {
  static auto* const root = new std::optional<UniqueId>;
  return *root;
}

}  // namespace

struct PmixJob::Client {
  std::unique_lock<std::mutex> turn;
  const Library* library = nullptr;
  Process self{};
  uint32_t ranks = 0;

  Outcome<std::shared_ptr<Question>> get(uint32_t rank, const char* key, int64_t limit_ns) const;
  Outcome<UniqueId> hear_root(int64_t limit_ns) const;
  Outcome<void> tell_root(const UniqueId& id) const;
};

/// Waits for values that are not there yet.
Outcome<std::shared_ptr<Question>> PmixJob::Client::get(uint32_t rank, const char* key, int64_t limit_ns) const {
  Process of = self;
  of.rank = rank;
  const int64_t end = base::now_ns() + limit_ns;
  while (true) {
    auto question = std::make_shared<Question>();
    auto held = std::make_unique<std::shared_ptr<Question>>(question);
    Status status = library->get(&of, key, nullptr, 0, on_value, held.get());
    if (status == kSuccess) {
      held.release();
      std::unique_lock lock(question->mutex);
      const auto left = std::chrono::nanoseconds(std::max<int64_t>(end - base::now_ns(), 0));
      if (!question->answered.wait_for(lock, left, [&] { return question->status.has_value(); }))
        return fault(ETIMEDOUT, std::string("PMIx: rank 0 of ") + self.job + " has not come");
      status = *question->status;
    }
    if (status == kSuccess) return question;
    // Of a rank that has told something else before, servers do not wait for more.
    if (status != kNotFound || base::now_ns() >= end) return tl::unexpected(library->check(status, key).error());
    usleep(kPauseUs);
  }
}

Outcome<UniqueId> PmixJob::Client::hear_root(int64_t limit_ns) const {
  const auto told = get(0, kRootKey, limit_ns);
  if (!told) return tl::unexpected(told.error());
  return UniqueId::from_text((*told)->string);
}

Outcome<void> PmixJob::Client::tell_root(const UniqueId& id) const {
  std::string text = id.text();
  Value value{};
  value.type = kString;
  value.string = text.data();
  if (auto put = library->check(library->put(kGlobal, kRootKey, &value), "PMIx_Put"); !put) return put;
  return library->check(library->commit(), "PMIx_Commit");
}

PmixJob::PmixJob(std::unique_ptr<Client> client) : client_(std::move(client)) {}
PmixJob::~PmixJob() { client_->library->finalize(nullptr, 0); }
uint32_t PmixJob::rank() const { return client_->self.rank; }
uint32_t PmixJob::ranks() const { return client_->ranks; }

Outcome<std::unique_ptr<PmixJob>> PmixJob::enter() {
  auto client = std::make_unique<Client>();
  client->turn = std::unique_lock(turn());
  const auto library = Library::load();
  if (!library) return tl::unexpected(library.error());
  client->library = *library;
  const auto entered = client->library->check(client->library->init(&client->self, nullptr, 0), "PMIx_Init");
  if (!entered) return tl::unexpected(entered.error());
  std::unique_ptr<PmixJob> job(new PmixJob(std::move(client)));
  const auto size = job->client_->get(kAnyRank, kJobSize, kSoonNs);
  if (!size) return tl::unexpected(size.error());
  job->client_->ranks = (*size)->number;
  return job;
}

Outcome<UniqueId> PmixJob::exchange_root(int64_t limit_ns) {
  std::optional<UniqueId>& known = known_root();
  if (known) return *known;
  auto id = rank() == 0 ? root_here() : client_->hear_root(limit_ns);
  if (!id) return id;
  if (rank() == 0)
    if (auto told = client_->tell_root(*id); !told) return tl::unexpected(told.error());
  known = *id;
  return id;
}

}  // namespace nupa::ccl
