#pragma once
/// Why operations of a communicator end: Cause. Why a call fails is nupa::Error, as everywhere.
/// Lowest folder: everybody may use it, from any thread.
#include "ccl/error/cause.h"
