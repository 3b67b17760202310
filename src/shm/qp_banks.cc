// SPDX-License-Identifier: Apache-2.0
#include "shm/qp_banks.h"

#include <algorithm>

namespace nupa::shm {

uint32_t QpBank::count() const { return std::min(high_water->load(), kSlotQp); }

void QpBanks::open(MappedFile* file, const Tables& tables, uint32_t slot) {
  file_ = file;
  tables_ = tables;
  slots_[0].store(slot);
  count_.store(1, std::memory_order_release);
}

QpBank QpBanks::at(uint32_t bank) {
  if (bank == 0) return {tables_.qp, tables_.statistics, tables_.header->qp_attention, &tables_.header->qp_high_water};
  if (bank >= kMaxBanks) return {};
  QpBankShared* shared = further_[bank].load(std::memory_order_acquire);
  if (shared == nullptr) {
    learn();
    shared = further_[bank].load(std::memory_order_acquire);
  }
  if (shared == nullptr) return {};
  return {shared->qp, shared->statistics, shared->attention, &shared->high_water};
}

QpShared* QpBanks::qp(uint32_t index) {
  const QpBank bank = at(bank_of(index));
  return bank ? &bank.qp[shm::index_of(index)] : nullptr;
}

StatisticsShared* QpBanks::statistics(uint32_t index) {
  const QpBank bank = at(bank_of(index));
  return bank ? &bank.statistics[shm::index_of(index)] : nullptr;
}

std::optional<uint32_t> QpBanks::bank_with(uint32_t slot) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  for (uint32_t bank = 0; bank < count; ++bank)
    if (slots_[bank].load(std::memory_order_relaxed) == slot) return bank;
  return std::nullopt;
}

std::optional<uint32_t> QpBanks::index_of(uint32_t number) {
  const uint32_t slot = slot_of(number);
  std::optional<uint32_t> bank = bank_with(slot);
  if (!bank) {
    learn();
    bank = bank_with(slot);
  }
  if (!bank) return std::nullopt;
  return number_of(*bank, shm::index_of(number));
}

bool QpBanks::has_slot(uint32_t slot) {
  return bank_with(slot) || (file_ != nullptr && claims_slot(*tables_.header, slot) && index_of(number_of(slot, 0)));
}

bool QpBanks::learn() {
  if (file_ == nullptr) return true;
  const auto& places = tables_.header->further_banks;
  const auto slot_at = [&](uint32_t bank) { return places[bank - 1].slot.load(); };
  uint32_t count = count_.load(std::memory_order_acquire);
  if (count == kMaxBanks || slot_at(count) == 0) return true;
  std::lock_guard lock(mutex_);
  for (count = count_.load(); count < kMaxBanks; ++count) {
    const uint32_t slot = slot_at(count);
    if (slot == 0) return true;
    const uint64_t offset = places[count - 1].offset.load();
    if (slot < kMinSlot || slot > kMaxSlot || offset % kPage != 0) return false;
    auto mapped = file_->at(offset, sizeof(QpBankShared));
    if (!mapped) return false;
    further_[count].store(static_cast<QpBankShared*>(*mapped), std::memory_order_release);
    slots_[count].store(slot, std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);
  }
  return true;
}

bool claims_slot(const SegmentHeader& header, uint32_t slot) {
  if (header.slot == slot) return true;
  for (const BankPlace& place : header.further_banks) {
    const uint32_t further = place.slot.load();
    if (further == 0) break;
    if (further == slot) return true;
  }
  return false;
}

}  // namespace nupa::shm
