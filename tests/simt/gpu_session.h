#pragma once

#include "tests/gpu/gpus.h"
#include "tests/simt/simt.h"
