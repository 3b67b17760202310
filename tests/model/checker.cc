// SPDX-License-Identifier: Apache-2.0
#include "checker.h"

#include <cstring>
#include <memory>
#include <string_view>

#include "explorer.h"

namespace model {
namespace {

/// The path in the repository: ccache reuses objects in which the path of the same file is relative.
std::string_view path_of(const std::source_location& where) {
  const std::string_view path = where.file_name();
  const size_t src = path.rfind("src/");
  return src == path.npos ? path : path.substr(src);
}

}  // namespace

bool Site::operator==(const Site& other) const {
  return where.line() == other.where.line() && where.column() == other.where.column() &&
         std::strcmp(operation, other.operation) == 0 && path_of(where) == path_of(other.where);
}

void* Case::memory(size_t bytes, size_t alignment) { return explorer->memory(bytes, alignment); }
void Case::adopt(const void* object, size_t bytes) { explorer->adopt(object, bytes); }
void Case::at_end(std::function<void()> action) { explorer->at_end(std::move(action)); }
void Case::thread(const char* name, std::function<void()> body) { explorer->add_thread(name, std::move(body)); }
void Case::may_wait_if(std::function<bool()> condition) { explorer->set_may_wait_if(std::move(condition)); }
void Case::finally(std::function<void()> body) { explorer->set_finally(std::move(body)); }

Result explore(Memory memory, const Build& build, const Weakened* weakened) {
  const auto made = std::make_unique<Explorer>(memory, build, weakened);
  explorer = made.get();
  Result result = made->run();
  explorer = nullptr;
  return result;
}

Memory memory() { return explorer->memory_model(); }
void require(bool holds, const char* text) {
  if (!holds) explorer->fail(text);
}
void outcome(std::string text) { explorer->add_outcome(std::move(text)); }
void note_access(const void* address, size_t bytes, bool writes) {
  if (explorer != nullptr) explorer->access(address, bytes, writes);
}
void pause() {
  if (operations::in_thread()) explorer->pause();
}

namespace operations {

bool in_thread() { return explorer != nullptr && explorer->in_thread(); }

uint64_t load(const void* address, uint64_t first_value, std::memory_order, const Site& site) {
  return explorer->load(address, first_value, explorer->order_at(site), false, nullptr);
}
void store(const void* address, uint64_t first_value, uint64_t value, std::memory_order, const Site& site) {
  explorer->store(address, first_value, value, explorer->order_at(site));
}
uint64_t update(const void* address, uint64_t first_value, std::memory_order, std::memory_order failure,
                const std::function<bool(uint64_t, uint64_t*)>& change, const Site& site, const Site* failure_site) {
  return explorer->update(address, first_value, explorer->order_at(site),
                          failure_site != nullptr ? explorer->order_at(*failure_site) : failure, change, nullptr);
}
uint64_t await_update(const void* address, uint64_t first_value, std::memory_order order,
                      const std::function<bool(uint64_t)>& condition,
                      const std::function<bool(uint64_t, uint64_t*)>& change) {
  return explorer->update(address, first_value, order, order, change, &condition);
}
uint64_t await(const void* address, uint64_t first_value, std::memory_order order,
               const std::function<bool(uint64_t)>& condition) {
  return explorer->load(address, first_value, order, false, &condition);
}
void fence(std::memory_order, Weight weight, const Site& site) { explorer->fence(explorer->order_at(site), weight); }
void at_finish(const void* address, const std::function<void(uint64_t)>& put) { explorer->put_at_finish(address, put); }

}  // namespace operations
}  // namespace model
