// SPDX-License-Identifier: Apache-2.0
#include "core/mr.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <shared_mutex>

#include "base/reason.h"
#include "base/fence.h"
#include "base/log.h"
#include "base/system_error.h"
#include "core/device_attr.h"

namespace nupa::core {

using shm::MrKind;
using shm::MrPiece;
using shm::MrShared;

Result<KeyEntry> KeyEntry::take(IndexPool& numbers, const shm::Tables& tables) {
  const int64_t index = numbers.take();
  if (index < 0) return fail(ENOMEM, "all memory keys of this process are in use");
  KeyEntry entry(numbers, tables.mr[index], static_cast<uint32_t>(index));
  ++entry.shared().generation;
  return entry;
}

KeyEntry::~KeyEntry() {
  if (numbers_ != nullptr && made_.holds()) numbers_->give_back(index_);
}

uint32_t KeyEntry::fresh_key() {
  // The low byte follows the generation, so that a key of an earlier use of this entry is invalid now.
  return index_ << shm::kKeyBits | (++shared().generation & 0xff);
}

Mr::Mr(DeviceImpl& device, Pd& pd, KeyEntry entry, Backing backing)
    : device_(device), pd_(&pd), entry_(std::move(entry)), backing_(backing) {}

Result<void> Mr::open(const MrSpec& spec, const Dm* of) {
  if (auto published = publish(spec, of, false); !published) return published;
  pd_->users.add();
  device_.users.add();
  open_ = true;
  return {};
}

namespace {

/// The error of a region that cannot be made: "nupa0: 4096 bytes at 0x7f0000001000: " and the reason.
tl::unexpected<Error> fail_region(const DeviceImpl& device, const MrSpec& spec, int code, std::string_view reason) {
  char address[24];
  std::snprintf(address, sizeof address, "%p", spec.addr);
  return fail(code, device.name(), ": ", spec.length, " bytes at ", std::string_view(address), ": ", reason);
}

/// Logs the reason, because the verbs API returns only the errno value. EFAULT needs no further reason.
void note_reason(const Error& error) {
  if (error.code() != EFAULT) NUPA_WARN("%s", error.what());
}

}  // namespace

Result<void> Mr::publish(const MrSpec& spec, const Dm* of, bool keep_key) {
  std::vector<MrPiece> pieces;
  bool holds_pages = false;
  // A peer has to reach only a region that it may read or write: a region with local read access alone stays private.
  constexpr uint32_t kWrites = access::kLocalWrite | access::kRemoteWrite | access::kRemoteAtomic | access::kMwBind;
  constexpr uint32_t kReachable = kWrites | access::kRemoteRead;
  const bool writes = (spec.access & kWrites) != 0;
  // With on-demand paging the kernel resolves the memory when it is used, so that the program may map it later.
  const bool on_demand = (spec.access & access::kOnDemand) != 0 && spec.length != SIZE_MAX;
  if (backing_ == Backing::kUser && (spec.access & kReachable) == 0) {
    if (!spec.is_everything() && !on_demand && !memory::Remapper::mapped(spec.addr, spec.length, false))
      return fail_region(device_, spec, EFAULT, "the range is not mapped with the requested access");
  } else if (backing_ == Backing::kUser && !(on_demand && !memory::Remapper::mapped(spec.addr, spec.length, writes))) {
    auto shared = device_.process().remapper().share(spec.addr, spec.length, writes);
    if (!shared) return fail_region(device_, spec, shared.error().code(), shared.error().what());
    holds_pages = true;
    for (const memory::Piece& piece : *shared) pieces.push_back({piece.begin, piece.end, piece.file_offset});
  } else if (of != nullptr) {
    pieces.push_back(of->shared().piece);
  }
  shm::Segment::Block block;
  if (pieces.size() > shm::kInlinePieces) {
    auto allocated = device_.process().ring_memory().allocate(pieces.size() * sizeof(MrPiece));
    if (!allocated) {
      if (holds_pages) device_.process().remapper().unshare(spec.addr, spec.length);
      return fail_region(device_, spec, allocated.error().code(), allocated.error().what());
    }
    block = *allocated;
    std::copy(pieces.begin(), pieces.end(), static_cast<MrPiece*>(block.address));
  }
  spec_ = spec;
  shared_memory_ = holds_pages;
  pieces_ = block;
  MrShared& shared = entry_.shared();
  // The generation changes in both cases: what peers have cached of the old registration becomes invalid.
  if (keep_key)
    ++shared.generation;
  else
    key_ = entry_.fresh_key();
  shared.pd = pd_->handle();
  shared.access = spec.access;
  shared.kind = static_cast<uint32_t>(backing_ == Backing::kNull ? MrKind::kNull : MrKind::kMemory);
  shared.start = spec.iova;
  shared.length = spec.length;
  shared.delta = reinterpret_cast<uint64_t>(spec.addr) - spec.iova;
  shared.pieces = block.offset;
  shared.piece_count = static_cast<uint32_t>(pieces.size());
  if (pieces.size() <= shm::kInlinePieces) std::copy(pieces.begin(), pieces.end(), shared.inline_pieces);
  shared.lent_to = of == nullptr ? 0 : of->shared().lent_to;
  shared.parent = 0;
  shared.qp_num = 0;
  shared.key.store(key_, std::memory_order_release);
  return {};
}

void Mr::revoke() {
  if (!device_.is_here()) return;
  entry_.shared().key.store(0, std::memory_order_seq_cst);
  // A process that looked the key up before may still be copying; no new access can begin.
  quiesce(device_.process().node());
  device_.process().transports().revoked(key_);
  if (shared_memory_) device_.process().remapper().unshare(spec_.addr, spec_.length);
  if (pieces_.size != 0) device_.process().ring_memory().give_back(pieces_);
  pieces_ = {};
  shared_memory_ = false;
}

Mr::~Mr() {
  if (open_ && close() != 0) NUPA_ERROR("memory region 0x%x deleted while memory windows are bound to it", key_);
}

int Mr::close() {
  if (has_live_window()) return base::reject(EBUSY, "a memory window is bound to the region");
  open_ = false;
  revoke();
  if (backing_ == Backing::kMapped || backing_ == Backing::kNull) munmap(spec_.addr, spec_.length);
  own_memory.reset();
  if (dm != nullptr) static_cast<Dm*>(dm)->users.drop();
  pd_->users.drop();
  device_.users.drop();
  return 0;
}

int Mr::reregister(uint32_t mask, Pd* pd, void* addr, size_t length, uint32_t access) {
  if (has_live_window()) return base::reject(EBUSY, "a memory window is bound to the region");
  if (backing_ != Backing::kUser) return EOPNOTSUPP;
  MrSpec wanted = spec_;
  if ((mask & mr_attr::kTranslation) != 0) {
    wanted.addr = addr;
    wanted.length = length;
  }
  if ((mask & mr_attr::kAccess) != 0) wanted.access = access;
  // The memory and the access flags decide where the region's addresses begin. If neither changes that, an address that
  // ibv_reg_mr_iova() set is kept.
  if ((mask & mr_attr::kTranslation) != 0 || ((wanted.access ^ spec_.access) & access::kZeroBased) != 0)
    wanted.iova = (wanted.access & access::kZeroBased) != 0 ? 0 : reinterpret_cast<uint64_t>(wanted.addr);
  const MrSpec before = spec_;
  Pd* pd_before = pd_;
  revoke();
  if ((mask & mr_attr::kPd) != 0) pd_ = pd;
  if (const auto published = publish(wanted, nullptr, true); !published) {
    note_reason(published.error());
    pd_ = pd_before;
    if (const auto restored = publish(before, nullptr, true); !restored)
      NUPA_ERROR("memory region 0x%x is invalid after a failed re-registration: %s", key_, restored.error().what());
    return published.error().code();
  }
  if (pd_ != pd_before) {
    pd_->users.add();
    pd_before->users.drop();
  }
  return 0;
}

namespace {
/// Guards the bindings of windows to regions. Only binds and deregistrations take it.
progress::ForkMutex& g_windows_mutex = *new progress::ForkMutex;
}  // namespace

bool Mr::has_live_window() {
  std::lock_guard lock(g_windows_mutex);
  for (auto window = windows.begin(); window != windows.end();) {
    if (!(*window)->invalidated()) return true;
    (*window)->let_go();
    window = windows.erase(window);
  }
  return false;
}

void Mw::attach(Mr* region) {
  std::lock_guard lock(g_windows_mutex);
  if (bound_ != nullptr) bound_->windows.erase(this);
  bound_ = region;
  if (bound_ != nullptr) bound_->windows.insert(this);
}

Mw::Mw(DeviceImpl& device, Pd& pd, KeyEntry entry, MwType type)
    : device_(device), pd_(pd), entry_(std::move(entry)), type_(type), rkey_(entry_.fresh_key()) {
  pd_.users.add();
  device_.users.add();
}

Mw::~Mw() {
  if (open_) close();
}

int Mw::close() {
  open_ = false;
  if (device_.is_here()) {
    entry_.shared().key.store(0, std::memory_order_seq_cst);
    quiesce(device_.process().node());
  }
  attach(nullptr);
  pd_.users.drop();
  device_.users.drop();
  return 0;
}

WcStatus Mw::bind(uint32_t qp_num, Pd& pd, const MwBindInfo& info, uint32_t new_key) {
  MrShared& shared = entry_.shared();
  auto* region = static_cast<Mr*>(info.region);
  if (&pd != &pd_) return WcStatus::kMwBindErr;
  const bool unbind = info.length == 0;
  if (!unbind) {
    const MrSpec& spec = region->spec();
    const uint64_t offset = info.addr - spec.iova;
    constexpr uint32_t kRights = access::kLocalWrite | access::kRemoteRead | access::kRemoteWrite |
                                 access::kRemoteAtomic | access::kZeroBased | access::kMwBind | access::kFlushGlobal;
    const uint32_t writes = info.access_flags & (access::kRemoteWrite | access::kRemoteAtomic);
    if (&region->pd() != &pd_ || (spec.access & access::kMwBind) == 0 || (info.access_flags & ~kRights) != 0 ||
        offset > spec.length || info.length > spec.length - offset ||
        (writes != 0 && (spec.access & access::kLocalWrite) == 0))
      return WcStatus::kMwBindErr;
    if (type_ == MwType::kType1 && (info.access_flags & access::kZeroBased) != 0) return WcStatus::kMwBindErr;
  }
  if (shm::key_index(new_key) != entry_.index()) return WcStatus::kMwBindErr;
  // A type 2 window is bound once and then invalidated (IBTA 10.6.7.2.2).
  if (type_ == MwType::kType2 && (unbind || shared.key.load() != 0)) return WcStatus::kMwBindErr;
  shared.key.store(0, std::memory_order_seq_cst);
  // A peer that reads one of the new fields below finds the old key invalid when it checks the key again
  // (KeyCache::load).
  base::fence_after_update();
  attach(unbind ? nullptr : region);
  if (unbind) {
    rkey_.store(new_key);
    return WcStatus::kSuccess;
  }
  const MrSpec& spec = region->spec();
  const bool zero_based = (info.access_flags & access::kZeroBased) != 0;
  const uint64_t address = info.addr - spec.iova + reinterpret_cast<uint64_t>(spec.addr);
  // The consumer chose the key's low byte. The generation follows it, so that fresh_key() does not soon give this key
  // to another object of the entry.
  shared.generation += ((new_key - shared.generation - 1) & 0xff) + 1;
  shared.pd = pd_.handle();
  shared.access = info.access_flags;
  shared.kind = static_cast<uint32_t>(MrKind::kWindow);
  shared.start = zero_based ? 0 : info.addr;
  shared.length = info.length;
  shared.delta = address - shared.start;
  shared.pieces = 0;
  shared.piece_count = 0;
  shared.parent = region->index();
  shared.qp_num = type_ == MwType::kType2 ? qp_num : 0;
  rkey_.store(new_key);
  shared.key.store(new_key, std::memory_order_release);
  return WcStatus::kSuccess;
}

namespace {
/// Adapters move device memory in words of four bytes, and programs are written accordingly.
constexpr uint64_t kDmGrain = 4;
}  // namespace

Dm::Dm(DeviceImpl& device, const Shared& shared, uint64_t length, TransportMemory* lender)
    : device_(device), shared_(shared), length_(length), lender_(lender), handle_(device.process().next_handle()) {
  device_.users.add();
}

Dm::~Dm() {
  if (open_ && close() != 0) NUPA_ERROR("device memory deleted while registered");
}

int Dm::copy_to(uint64_t offset, const void* from, size_t length) {
  if ((offset | length) % kDmGrain != 0) return EINVAL;
  if (offset > length_ || length > length_ - offset) return EFAULT;
  std::memcpy(begin() + offset, from, length);
  return 0;
}

int Dm::copy_from(void* to, uint64_t offset, size_t length) {
  if ((offset | length) % kDmGrain != 0) return EINVAL;
  if (offset > length_ || length > length_ - offset) return EFAULT;
  std::memcpy(to, begin() + offset, length);
  return 0;
}

int Dm::close() {
  if (users.any()) return EBUSY;
  open_ = false;
  if (lender_ == nullptr)
    device_.process().remapper().release({shared_.piece.begin, shared_.piece.end, shared_.piece.file_offset});
  else if (device_.is_here())
    lender_->free(begin(), length_);
  device_.users.drop();
  return 0;
}

// ---- the device's factory functions ----------------------------------------------------------------------------

namespace {

constexpr uint32_t kKnownAccess = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                                  access::kRemoteAtomic | access::kMwBind | access::kZeroBased | access::kOnDemand |
                                  access::kHugeTlb | access::kFlushGlobal;

constexpr const char* kWrongAccess = ": unknown or contradictory access flags";

constexpr const char* kNotPersistent = ": IBV_ACCESS_FLUSH_PERSISTENT (no memory is persistent)";

/// IBTA 11.2.8.2: remote write and atomic rights need local write. Returns 0, EINVAL or EOPNOTSUPP.
int check_access(uint32_t flags) {
  if ((flags & ~(kKnownAccess | access::kFlushPersistent | access::kOptionalMask)) != 0) return EINVAL;
  if ((flags & (access::kRemoteWrite | access::kRemoteAtomic)) != 0 && (flags & access::kLocalWrite) == 0)
    return EINVAL;
  return (flags & access::kFlushPersistent) != 0 ? EOPNOTSUPP : 0;
}

tl::unexpected<Error> fail_access(const std::string& device, int code) {
  return fail(code, device, code == EOPNOTSUPP ? kNotPersistent : kWrongAccess);
}

Result<std::unique_ptr<MemoryRegion>> make(DeviceImpl& device, Pd& pd, Mr::Backing backing, const MrSpec& spec,
                                           const Dm* of) {
  auto entry = KeyEntry::take(device.process().objects().mr_numbers(), device.process().tables());
  if (!entry) return tl::unexpected(entry.error());
  auto region = std::make_unique<Mr>(device, pd, std::move(*entry), backing);
  if (auto opened = region->open(spec, of); !opened) {
    note_reason(opened.error());
    return tl::unexpected(opened.error());
  }
  return region;
}

}  // namespace

Result<std::unique_ptr<MemoryRegion>> DeviceImpl::reg_mr(ProtectionDomain& pd, void* addr, size_t length, uint64_t iova,
                                                         uint32_t access_flags) {
  if (!is_here()) return fail_inherited();
  const auto start = reinterpret_cast<uint64_t>(addr);
  if (const int error = check_access(access_flags); error != 0) return fail_access(name_, error);
  if (length == 0 || start + length < start)
    return fail(EINVAL, name_, ": a region of ", length, " bytes is empty or exceeds the address space");
  const uint64_t first = (access_flags & access::kZeroBased) != 0 ? 0 : iova;
  if (first + length < first) return fail(EINVAL, "iova plus length exceeds the address space");
  return make(*this, static_cast<Pd&>(pd), Mr::Backing::kUser,
              {addr, length, first, access_flags & ~access::kOptionalMask}, nullptr);
}

Result<std::unique_ptr<MemoryRegion>> DeviceImpl::reg_dmabuf_mr(ProtectionDomain& pd, uint64_t offset, size_t length,
                                                                uint64_t iova, int fd, uint32_t access_flags) {
  if (!is_here()) return fail_inherited();
  // Programs ask so whether the device can register the memory of accelerators, whose buffers it cannot map.
  if (fd < 0) return fail(EOPNOTSUPP, name_, ": a dma-buf region needs a descriptor that can be mapped");
  if (const int error = check_access(access_flags); error != 0) return fail_access(name_, error);
  if (length == 0) return fail(EINVAL, "the length of a dma-buf region is zero");
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (offset % page != 0 || length % page != 0)
    return fail(EINVAL, "offset and length must be multiples of the page size");
  const int protection = PROT_READ | ((access_flags & access::kLocalWrite) != 0 ? PROT_WRITE : 0);
  void* addr = mmap(nullptr, length, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (addr == MAP_FAILED) return base::fail_call(errno, name_, ": cannot map descriptor ", fd);
  auto region = make(*this, static_cast<Pd&>(pd), Mr::Backing::kMapped,
                     {addr, length, iova, access_flags & ~access::kOptionalMask}, nullptr);
  if (!region) munmap(addr, length);
  return region;
}

Result<std::unique_ptr<MemoryRegion>> DeviceImpl::alloc_mr(ProtectionDomain& pd, size_t length, uint32_t access_flags,
                                                           MemorySource source) {
  if (!is_here()) return fail_inherited();
  if (const int error = check_access(access_flags); error != 0) return fail_access(name_, error);
  if ((access_flags & access::kZeroBased) != 0) return fail(EINVAL, name_, kWrongAccess);
  Result<std::unique_ptr<Dm>> memory = fail(ENOMEM, "no transport lends memory");
  TransportMemory* const lender = source == MemorySource::kTransport ? process_->transports().lender() : nullptr;
  if (lender != nullptr && length != 0) {
    memory = lend(*lender, length);
    if (!memory)
      NUPA_INFO("%s: %zu bytes are outside of the memory that hosts share, and data gets there by one more copy: %s",
                name_.c_str(), length, memory.error().what());
  }
  if (!memory) memory = allocate_mappable(length);
  if (!memory)
    return fail(memory.error().code(), name_, ": cannot allocate a memory region of ", length,
                " bytes: ", memory.error().what());
  const Dm& allocated = **memory;
  auto region = make(*this, static_cast<Pd&>(pd), Mr::Backing::kAllocated,
                     {allocated.begin(), length, allocated.shared().piece.begin, access_flags & ~access::kOptionalMask},
                     &allocated);
  if (region) static_cast<Mr&>(**region).own_memory = std::move(*memory);
  return region;
}

Result<std::unique_ptr<MemoryRegion>> DeviceImpl::alloc_null_mr(ProtectionDomain& pd) {
  if (!is_here()) return fail_inherited();
  // Its addresses are never accessed; one reserved page gives it an address.
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* addr = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (addr == MAP_FAILED) return fail(ENOMEM, "no address space for a null memory region (raise ulimit -v)");
  auto region = make(*this, static_cast<Pd&>(pd), Mr::Backing::kNull, {addr, page, 0, access::kLocalWrite}, nullptr);
  if (!region) {
    munmap(addr, page);
    return region;
  }
  // A null region covers every address.
  MrShared& shared = process_->tables().mr[static_cast<Mr&>(**region).index()];
  shared.length = UINT64_MAX;
  return region;
}

Result<std::unique_ptr<MemoryRegion>> DeviceImpl::reg_dm_mr(ProtectionDomain& pd, DeviceMemory& dm, uint64_t offset,
                                                            size_t length, uint32_t access_flags) {
  if (!is_here()) return fail_inherited();
  auto& memory = static_cast<Dm&>(dm);
  if (const int error = check_access(access_flags); error != 0) return fail_access(name_, error);
  if ((access_flags & access::kZeroBased) == 0) return fail(EINVAL, "device memory needs IBV_ACCESS_ZERO_BASED");
  if (offset > memory.length() || length > memory.length() - offset)
    return fail(EINVAL, "the range exceeds the device memory");
  auto region = make(*this, static_cast<Pd&>(pd), Mr::Backing::kDm,
                     {memory.begin() + offset, length, 0, access_flags & ~access::kOptionalMask}, &memory);
  if (region) {
    memory.users.add();
    static_cast<Mr&>(**region).dm = &memory;
  }
  return region;
}

int DeviceImpl::rereg_mr(MemoryRegion& region, uint32_t mask, ProtectionDomain* pd, void* addr, size_t length,
                         uint32_t access_flags) {
  if (!is_here()) return ENODEV;
  constexpr uint32_t kAll = mr_attr::kTranslation | mr_attr::kPd | mr_attr::kAccess;
  if (mask == 0 || (mask & ~kAll) != 0) return base::reject(EINVAL, "flags ", mask, " (from 1 to ", kAll, ")");
  if ((mask & mr_attr::kTranslation) != 0 && (length == 0 || addr == nullptr))
    return base::reject(EINVAL, "IBV_REREG_MR_CHANGE_TRANSLATION without an address or a length");
  if ((mask & mr_attr::kPd) != 0 && pd == nullptr)
    return base::reject(EINVAL, "IBV_REREG_MR_CHANGE_PD without a protection domain");
  if (const int error = (mask & mr_attr::kAccess) != 0 ? check_access(access_flags) : 0; error != 0)
    return base::reject(error, error == EOPNOTSUPP ? kNotPersistent : kWrongAccess);
  return static_cast<Mr&>(region).reregister(mask, static_cast<Pd*>(pd), addr, length,
                                             access_flags & ~access::kOptionalMask);
}

int DeviceImpl::advise_mr(ProtectionDomain& pd, MrAdvice advice, uint32_t flags, const Sge* list, uint32_t count) {
  if (!is_here()) return ENODEV;
  if (advice > MrAdvice::kPrefetchNoFault || (flags & ~advise_flag::kFlush) != 0) return EINVAL;
  if (list == nullptr || count == 0) return base::reject(EINVAL, "an empty list");
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = shm::key_index(list[i].lkey);
    if (list[i].lkey == 0 || index >= shm::kMaxMr) return ENOENT;
    const MrShared& mr = process_->tables().mr[index];
    if (mr.key.load() != list[i].lkey) return ENOENT;
    if (mr.pd != static_cast<Pd&>(pd).handle()) return EINVAL;
    const uint64_t offset = list[i].addr - mr.start;
    if (offset > mr.length || list[i].length > mr.length - offset) return EFAULT;
    if (advice == MrAdvice::kPrefetchWrite && (mr.access & access::kLocalWrite) == 0) return EPERM;
    if (advice == MrAdvice::kPrefetchNoFault || mr.kind == static_cast<uint32_t>(MrKind::kNull)) continue;
    const uint64_t begin = (list[i].addr + mr.delta) & ~(page - 1);
    const uint64_t end = (list[i].addr + mr.delta + list[i].length + page - 1) & ~(page - 1);
    if (madvise(reinterpret_cast<void*>(begin), end - begin,
                advice == MrAdvice::kPrefetch ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) != 0)
      return EFAULT;
  }
  return 0;
}

Result<std::unique_ptr<MemoryWindow>> DeviceImpl::alloc_mw(ProtectionDomain& pd, MwType type) {
  if (!is_here()) return fail_inherited();
  if (type != MwType::kType1 && type != MwType::kType2) return fail(EINVAL, "the memory window type is not supported");
  auto entry = KeyEntry::take(process_->objects().mr_numbers(), process_->tables());
  if (!entry) return tl::unexpected(entry.error());
  return std::make_unique<Mw>(*this, static_cast<Pd&>(pd), std::move(*entry), type);
}

Result<std::unique_ptr<DeviceMemory>> DeviceImpl::alloc_dm(size_t length, uint32_t log_align) {
  // Also in a forked child, which has its own remapper file: programs allocate in processes that multiprocessing
  // forked.
  constexpr uint32_t kPageLog = 12;
  if (length == 0) return fail(EINVAL, name_, ": device memory of 0 bytes");
  if (log_align > kPageLog) return fail(EINVAL, name_, ": device memory cannot be aligned to more than a page");
  if (TransportMemory* const lender = own_memory(); lender != nullptr) return lend(*lender, length);
  if (const uint64_t most = device_attr().max_dm_size; length > most)
    return fail(ENOMEM, name_, ": device memory of ", length, " bytes exceeds ", most, " bytes");
  return allocate_mappable(length);
}

Result<std::unique_ptr<Dm>> DeviceImpl::allocate_mappable(size_t length) {
  const auto piece = process_->remapper().allocate(length);
  if (!piece) return tl::unexpected(piece.error());
  return std::make_unique<Dm>(*this, Dm::Shared{{piece->begin, piece->end, piece->file_offset}, 0}, length, nullptr);
}

Result<std::unique_ptr<Dm>> DeviceImpl::lend(TransportMemory& lender, size_t length) {
  const auto lent = lender.allocate(length);
  if (!lent) return tl::unexpected(lent.error());
  const auto begin = reinterpret_cast<uintptr_t>(lent->memory);
  const uint64_t pages = (length + shm::kPage - 1) / shm::kPage * shm::kPage;
  return std::make_unique<Dm>(*this, Dm::Shared{{begin, begin + pages, lent->place.offset}, lent->place.owner}, length,
                              &lender);
}

}  // namespace nupa::core
