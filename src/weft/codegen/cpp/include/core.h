// What every generated translation unit includes (emit.py adds math.h, ... as needed).
//
// No system or torch header is included: parsing this takes the compiler about 10 ms.
#pragma once
#include "indices.h"
#include "memory.h"
#include "threads.h"
#include "vectors.h"
